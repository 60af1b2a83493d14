# The C side of singles_cy.py.

from cpython.buffer cimport Py_buffer, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t
from libc.string cimport memcmp, memcpy, memset

from tailrace.shard.frame_cy cimport tr_load16, tr_load32, tr_store32

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void *buffer, size_t length, int flags)
    ssize_t send(int fd, const void *buffer, size_t length, int flags)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    /* Where the payload begins if these bytes are one whole PUBLISH of MQTT, not repeated or retained, without a
       property, whose topic is `topic` with the two bytes of its length; else 0. What is 0 may still be valid. */
    static inline size_t tr_publish_payload(
        const uint8_t *data, size_t count, const uint8_t *topic, size_t topic_bytes, int qos, int has_properties
    ) {
        size_t at = 1, size = 0;
        int shift = 0;
        if (count < 2 || data[0] != (0x30 | qos << 1)) return 0;
        do {
            if (at == count || shift > 21) return 0;
            size |= (size_t)(data[at] & 0x7F) << shift;
            shift += 7;
        } while (data[at++] & 0x80);
        if ((shift > 7 && data[at - 1] == 0) || size != count - at) return 0;
        if (size < topic_bytes + 2 * qos + has_properties || memcmp(data + at, topic, topic_bytes)) return 0;
        at += topic_bytes;
        if (qos) {
            if (!data[at] && !data[at + 1]) return 0;
            at += 2;
        }
        if (has_properties && data[at++]) return 0;
        return at;
    }
    """
    size_t tr_publish_payload(
        const uint8_t *data, size_t count, const uint8_t *topic, size_t topic_bytes, int qos, int has_properties
    ) noexcept nogil
