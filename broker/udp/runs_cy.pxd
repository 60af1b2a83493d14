# The C side of runs_cy.py.

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy

from tailrace.broker.udp.table_cy cimport _find_peer, _subscribe
from tailrace.protocol.topic_table cimport tr_place
