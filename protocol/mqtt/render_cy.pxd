# The C side of render_cy.py.

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from tailrace.shard.frame_cy cimport tr_load16, tr_load32, tr_load64, tr_store64

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>

    static inline int tr_is_ascii(const uint8_t *p, size_t length) {
        while (length--) if (*p++ > 127) return 0;
        return 1;
    }
    """
    bint tr_is_ascii(const uint8_t *p, size_t length) noexcept nogil

# One frame as a PUBLISH; `body` is the length in its head.
cdef struct Rendered:
    const uint8_t *topic
    const uint8_t *payload
    uint32_t topic_length
    uint32_t payload_length
    uint32_t body
    uint8_t qos
    uint64_t seq
