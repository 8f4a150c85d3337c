/* codec.h - frames and their contents. Pure functions: bytes in, struct out, and back.
 *
 * A frame is an 8-byte header and a protobuf envelope: 'c' 'd', CODEC_FORMAT (u8), 0, payload
 * length (u32 little endian). The same frames run over the UNIX socket, TLS and the engine's
 * socketpair. File descriptors ride with the first byte of the frame (SCM_RIGHTS). */
#ifndef COMMD_CODEC_H
#define COMMD_CODEC_H

#include "shm/proto/msg.h"

enum {
    CODEC_FORMAT = 10, /* changes with the header alone; before MSG_VERSION 10 that stood here */
    CODEC_HEADER = 8,
    CODEC_MAX_FRAME = 8u << 20,
    CODEC_MAX_CLIENT_FRAME = 64u << 10,
};

enum codec_result {
    CODEC_OK = 0,
    CODEC_E_MORE = 1,      /* not a whole frame yet; *ret_need: total bytes wanted */
    CODEC_E_MAGIC = 2,     /* not our protocol */
    CODEC_E_VERSION = 3,   /* our protocol, another format */
    CODEC_E_TOO_LARGE = 4, /* longer than @max */
    CODEC_E_CONTENT = 5,   /* not decodable, unknown type, or a field out of its bounds */
    CODEC_E_NOMEM = 6,
};
/* "truncated", "not a commd frame", ... for error lines. */
const char *codec_strerror(int r);

/* Looks at the first bytes of a stream. CODEC_OK: a whole frame of *ret_need bytes is there.
 * @max: largest payload this sender may use. */
int codec_frame_check(const void *buf, size_t len, size_t max, size_t *ret_need);
/* Decodes one whole frame (header included). The result must be released with msg_fini(). */
int codec_decode(const void *frame, size_t len, struct msg *ret_msg);
/* Encodes to a malloc'ed frame. -ENOMEM, -EINVAL (a field out of bounds: our bug; the bounds
 * are in codec_check.c). What is not UTF-8, and control characters, become '?' in text and
 * cells; in a name they are -EINVAL. A NULL cell is sent as "". */
int codec_encode(const struct msg *msg, void **ret_frame, size_t *ret_len);
/* Frees what decode allocated and clears the struct; for any decoded or zeroed msg, and for one
 * built by hand if each list, and each cell of a table, is its own malloc(). */
void msg_fini(struct msg *msg);
/* What names have to be: UTF-8 without control characters. *ret_bad: offset of the first byte
 * that is not. */
bool codec_text_clean(const char *s, size_t len, size_t *ret_bad);
/* "CLIENT_JOIN" for logs. */
const char *msg_type_name(enum msg_type type);
/* "rank lost" etc. */
const char *cause_name(unsigned cause);

/* Blocking helpers over a UNIX stream socket, for clients, commctl and the engine.
 * Return 0 or negative errno (-EPROTONOSUPPORT, of another version, and -EPROTO with *ret_why set
 * to codec_strerror, -ECONNRESET on EOF, -ETIMEDOUT). fds: received ones are close-on-exec and
 * owned by the caller; surplus ones are closed. @deadline_ms: CLOCK_MONOTONIC milliseconds, -1:
 * none. After any failure the stream may stand within a frame: close it. */
int msg_send_fd(int sock, const struct msg *msg, const int *fds, unsigned nfds,
                int64_t deadline_ms);
int msg_recv_fd(int sock, struct msg *ret_msg, int *fds, unsigned max_fds, unsigned *ret_nfds,
                int64_t deadline_ms, const char **ret_why);

/* A frame that has come in part. What was read belongs to it: after a failure, or when its socket
 * is closed, msg_reader_fini() makes it new. */
enum { MSG_READER_FDS = 8 };
struct msg_reader {
    char header[CODEC_HEADER];
    char *frame; /* owned */
    size_t have, need;
    int fds[MSG_READER_FDS]; /* owned */
    unsigned nfds;
};
/* As msg_recv_fd(), but it never waits: -EAGAIN if the frame is not there wholly. */
int msg_read_fd(int sock, struct msg_reader *reader, struct msg *ret_msg, int *fds,
                unsigned max_fds, unsigned *ret_nfds, const char **ret_why);
void msg_reader_fini(struct msg_reader *reader);

#endif
