"""The UDP door: datagrams in and out, subscriptions in packed arrays, leases, cookies."""
