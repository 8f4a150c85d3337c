/* fakenccl_table.c - how ranks meet. Who makes a unique id makes a memfd, and a thread that hands
 * it to everybody who asks at an abstract socket named by the id. So nothing is left behind when
 * processes die; and as with NCCL, nobody meets once the maker of the id is dead. */
#include "tests/fakecuda/fakenccl.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct offer {
    int listener, table;
};

static socklen_t address(const struct nccl_id *id, struct sockaddr_un *a)
{
    int n;

    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "fakenccl-");
    for (unsigned i = 0; i < 16; i++)
        n += snprintf(a->sun_path + 1 + n, sizeof a->sun_path - 1 - (size_t)n, "%02x",
                      (unsigned char)id->bytes[8 + i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static void hand_out(int s, int fd)
{
    char control[CMSG_SPACE(sizeof fd)] = {0}, byte = 0;
    struct iovec iov = {&byte, 1};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    sendmsg(s, &m, MSG_NOSIGNAL);
}

static void *serve(void *arg)
{
    struct offer *o = arg;
    int s;

    while ((s = accept4(o->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        hand_out(s, o->table);
        close(s);
    }
    close(o->listener);
    close(o->table);
    free(o);
    return NULL;
}

nccl_result fake_table_offer(struct nccl_id *id)
{
    struct offer *o = malloc(sizeof *o);
    struct sockaddr_un a;
    socklen_t len;
    pthread_t thread;

    memset(id, 0, sizeof *id);
    memcpy(id->bytes, "fakenccl", 8);
    if (!o || getrandom(id->bytes + 8, 16, 0) != 16) {
        free(o);
        return fake_fail(NCCL_E_SYSTEM, "no unique id");
    }
    len = address(id, &a);
    o->table = memfd_create("fakenccl", MFD_CLOEXEC);
    o->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (o->table < 0 || o->listener < 0 || ftruncate(o->table, sizeof(struct fake_table)) ||
        bind(o->listener, (struct sockaddr *)&a, len) || listen(o->listener, FAKE_RANKS) ||
        pthread_create(&thread, NULL, serve, o)) {
        close(o->table);
        close(o->listener);
        free(o);
        return fake_fail(NCCL_E_SYSTEM, "cannot offer a unique id: %m");
    }
    pthread_detach(thread);
    return NCCL_SUCCESS;
}

int fake_table_find(const struct nccl_id *id, struct fake_table **ret_table)
{
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), fd = -1;
    char control[CMSG_SPACE(sizeof fd)], byte;
    struct iovec iov = {&byte, 1};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c;
    struct sockaddr_un a;
    socklen_t len = address(id, &a);
    void *p = MAP_FAILED;

    if (s >= 0 && !connect(s, (struct sockaddr *)&a, len) &&
        recvmsg(s, &m, MSG_CMSG_CLOEXEC) == 1 && (c = CMSG_FIRSTHDR(&m)))
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
    if (s >= 0)
        close(s);
    if (fd >= 0) {
        p = mmap(NULL, sizeof(struct fake_table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
    }
    if (p == MAP_FAILED)
        return 1;
    *ret_table = p;
    return 0;
}

void fake_table_unmap(struct fake_table *table)
{
    if (table)
        munmap(table, sizeof *table);
}
