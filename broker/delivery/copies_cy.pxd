# The C side of copies_cy.py.

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t

from tailrace.shard.frame_cy cimport tr_load64

cdef extern from "<sys/socket.h>" nogil:
    ssize_t send(int fd, const void *buffer, size_t length, int flags)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL
