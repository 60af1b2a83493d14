"""What this node is to each stream: master or slave, in which term, by which rule."""
