# The C side of pick_cy.py.

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from tailrace.shard.frame_cy cimport crc32c_extend, tr_load16, tr_load32, tr_load64, tr_topic

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>

    /* Whether a valid filter matches a topic: level by level, in one pass over both. */
    static inline int tr_filter_matches(const uint8_t *f, size_t fn, const uint8_t *t, size_t tn) {
        size_t i = 0, j = 0;
        if (tn && t[0] == '$' && (f[0] == '+' || f[0] == '#')) return 0;
        for (;;) {
            if (i < fn && f[i] == '#') return 1;
            if (i < fn && f[i] == '+') {
                i++;
                while (j < tn && t[j] != '/') j++;
            } else {
                while (i < fn && f[i] != '/') {
                    if (j == tn || t[j] != f[i]) return 0;
                    i++; j++;
                }
                if (j < tn && t[j] != '/') return 0;
            }
            if (i == fn) return j == tn;
            if (j == tn) return i + 2 == fn && f[i + 1] == '#';
            i++; j++;
        }
    }
    """
    int tr_filter_matches(const uint8_t *f, size_t fn, const uint8_t *t, size_t tn) noexcept nogil
