# The C side of table_cy.py.

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memcmp, memcpy

from tailrace.shard.frame_cy cimport tr_topic

cdef extern from *:
    """
    #include <stdint.h>
    #include <stdlib.h>

    static int tr_compare_keys(const void *one, const void *other) {
        uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
        return a < b ? -1 : a > b;
    }
    static void tr_sort_keys(void *keys, size_t count) { qsort(keys, count, 8, tr_compare_keys); }
    """
    void tr_sort_keys(void *keys, size_t count) noexcept nogil

# For runs_cy.py.
cdef unsigned char *_octets_of(object buffer)
cdef Py_ssize_t _find_peer(unsigned int *words, unsigned int *name, Py_ssize_t at) noexcept
cdef tuple _subscribe(
    unsigned int *words,
    unsigned char *octets,
    unsigned int *names,
    Py_ssize_t at,
    unsigned char *topic,
    Py_ssize_t length,
    bint is_filter,
    Py_ssize_t number,
    Py_ssize_t now_s,
)
