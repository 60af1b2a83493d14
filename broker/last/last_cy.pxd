# The C side of last_cy.py.

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t

from tailrace.shard.frame_cy cimport tr_load16, tr_load32, tr_load64, tr_topic

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>

    /* Whether metadata, in which `topic` was found or NULL, marks its message as one to retain: the key `k` with the
       value 1 right behind the topic, or as the first key. */
    static inline int tr_is_retained(const uint8_t *p, size_t size, const uint8_t *topic, size_t topic_bytes) {
        const uint8_t *end = p + size;
        if (size < 4 || p[0] < 0x81 || p[0] > 0x8F) return 0;
        p = topic ? topic + topic_bytes : p + 1;
        return end - p >= 3 && p[0] == 0xA1 && p[1] == 'k' && p[2] == 1;
    }
    """
    int tr_is_retained(const uint8_t *p, size_t size, const uint8_t *topic, size_t topic_bytes) noexcept nogil
