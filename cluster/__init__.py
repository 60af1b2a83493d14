"""Which node leads and which nodes hold each group of streams, decided with etcd's help."""
