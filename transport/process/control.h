/* control.h - commd's end of commd-engine and commd-gpu: the control socket, and the line by which
 * the next commd brings another one. See control.c. */
#ifndef COMMD_CONTROL_H
#define COMMD_CONTROL_H

#include "shm/proto/codec.h"

struct control {
    int sock;           /* owned; -1: no commd is there */
    int line;           /* owned; -1: none, so we end with the commd that has started us */
    int epoll;          /* owned: of both */
    int spare;          /* owned: keeps a number free for the next control socket; -1: none */
    bool ended, writes; /* @writes: epoll tells when more can be sent */
    struct msg_reader in;
    char *out; /* owned: what the socket did not take yet */
    size_t out_at, out_len, out_room;
};

/* Takes @sock, and the line if there is one at ENGINE_LINE_FD. */
int control_begin(struct control *c, int sock);
void control_fini(struct control *c);
/* Readable when control_next() has something. */
static inline int control_fd(const struct control *c)
{
    return c->epoll;
}
/* Never waits. Without a commd the message is dropped. @fd: goes with it; -1: none. */
void control_send(struct control *c, const struct msg *msg, int fd);

enum control_event {
    CONTROL_NONE,
    CONTROL_MSG, /* a message of commd; *ret_fd: -1, or the descriptor that came with it */
    CONTROL_NEW, /* another commd is there: tell it what there is, beginning with a hello */
    CONTROL_END, /* there will be no commd any more */
};
enum control_event control_next(struct control *c, struct msg *ret_msg, int *ret_fd);

#endif
