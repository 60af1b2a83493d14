# The C side of runs_cy.py.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy

from tailrace.broker.udp.packets_cy cimport _topic_length, _topic_start
from tailrace.broker.udp.table_cy cimport _find_peer, _octets_of, _subscribe
from tailrace.protocol.topic_table cimport tr_place
