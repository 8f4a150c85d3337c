/* stream.h - frames with descriptors over a non-blocking UNIX stream socket, to a client or to the
 * engine. What comes in is bounded; what waits to go out is counted. */
#ifndef COMMD_STREAM_H
#define COMMD_STREAM_H

#include "shm/util/closer.h"
#include "shm/proto/codec.h"

enum { STREAM_MAX_FDS = 2 }; /* with one message, and waiting to be taken */

enum stream_result {
    STREAM_OK,
    STREAM_AGAIN,   /* not now: the socket becomes readable, or writable, when it goes on */
    STREAM_LATER,   /* descriptors cannot go now: try again by a timer, the socket does not tell */
    STREAM_EOF,     /* the other side has closed */
    STREAM_FAILED,  /* nothing more can be read, or nothing more can be sent */
    STREAM_GARBAGE, /* what came is not our protocol */
};

struct stream_frame;

/* Counts descriptors that are kept open. */
struct stream_count {
    unsigned n;
    struct stream_count *up; /* borrowed: counts the same descriptors, too; or NULL */
};

/* A descriptor that goes to many clients. It is open once, however often it is queued. */
struct stream_fd;
/* Takes *@fd on success; NULL: no memory. */
struct stream_fd *stream_fd_new(int *fd);
struct stream_fd *stream_fd_unref(struct stream_fd *fd); /* NULL ok; always returns NULL */

struct stream {
    int fd;      /* owned */
    size_t max;  /* largest payload accepted */
    uint8_t *in; /* owned: in[in_off..in_len) is not decoded yet */
    size_t in_off, in_len, in_size;
    struct stream_frame *out, **out_tail; /* owned */
    size_t out_bytes;                     /* unsent */
    unsigned out_fds;                     /* unsent; a shared one counts each time it is queued */
    unsigned sent_fds;                    /* since the caller has set it to 0 */
    /* set by the caller */
    struct stream_count *held;                  /* borrowed; counts unsent descriptors, or NULL */
    bool (*may_send)(void *arg, unsigned nfds); /* may @nfds descriptors go now? NULL: always */
    void *arg;
    bool keeps_fds;             /* the other side may send descriptors */
    struct closer *closer;      /* borrowed: closes descriptors and the socket; NULL: we close */
    uint32_t uid;               /* the closer's lane */
    int in_fds[STREAM_MAX_FDS]; /* owned: received and not taken yet, oldest first */
    unsigned nin_fds;
};

/* Takes @fd. */
void stream_init(struct stream *s, int fd, size_t max);
void stream_fini(struct stream *s);
/* Takes the next message, and reads from the socket if no whole message is there. STREAM_GARBAGE:
 * *ret_why says what came instead. STREAM_LATER: there is no room for the next descriptors. */
enum stream_result stream_next(struct stream *s, struct msg *ret_msg, const char **ret_why);
/* The oldest descriptor that came in, now the caller's; -1: there is none. */
int stream_take_fd(struct stream *s);
/* Queues @msg with duplicates of @fds. 0 or negative errno, nothing queued then. */
int stream_send(struct stream *s, const struct msg *msg, const int *fds, unsigned nfds);
/* The same with shared descriptors. The stream keeps a reference to each until it is sent. */
int stream_send_shared(struct stream *s, const struct msg *msg, struct stream_fd *const *fds,
                       unsigned nfds);
/* Drops all that is not sent, maybe in the middle of a frame: nothing may be sent after that. */
void stream_drop(struct stream *s);
/* Sends as much as the socket takes, in order. STREAM_OK: all is sent. */
enum stream_result stream_flush(struct stream *s);

#endif
