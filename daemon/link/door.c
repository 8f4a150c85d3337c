/* door.c - see door.h. */
#include "daemon/link/door.h"

enum { DOOR_DEAF_MS = 100 }; /* the kernel lets nobody in, and who knocks stays */

static void door_rest(struct door *door, unsigned ms)
{
    event_del(door->knock); /* more may wait: see SOCK_QUEUE */
    event_add(door->rested, &(struct timeval){.tv_usec = ms * 1000});
}

static void door_knock(evutil_socket_t unused, short what, void *arg)
{
    struct door *door = arg;

    for (unsigned i = 0; i < door->ops->budget; i++) {
        struct sock_addr from = {.len = 0};
        int fd = -1, r = sock_accept(door->fd, &door->reserve, &from, &fd);

        if (r == SOCK_E_AGAIN)
            return;
        if (!r) {
            door->ops->came(door->arg, fd, &from);
            continue;
        }
        door->ops->full(door->arg);
        if (r < 0)
            return door_rest(door, DOOR_DEAF_MS);
        close_fdp(&fd);
        sock_reserve_init(&door->reserve);
    }
    door_rest(door, door->ops->rest_ms);
}

static void door_rested(evutil_socket_t fd, short what, void *arg)
{
    struct door *door = arg;

    event_add(door->knock, NULL);
}

int door_open(struct door *door, struct event_base *base, int fd, const struct door_ops *ops,
              void *arg)
{
    *door = (struct door){.fd = fd, .ops = ops, .arg = arg};
    sock_reserve_init(&door->reserve);
    door->knock = event_new(base, fd, EV_READ | EV_PERSIST, door_knock, door);
    door->rested = evtimer_new(base, door_rested, door);
    if (door->knock && door->rested && !event_add(door->knock, NULL))
        return 0;
    door_fini(door);
    return -ENOMEM;
}

void door_shut(struct door *door)
{
    event_del(door->knock);
    event_del(door->rested);
}

void door_fini(struct door *door)
{
    if (!door->ops)
        return;
    if (door->knock)
        event_free(door->knock);
    if (door->rested)
        event_free(door->rested);
    close_fdp(&door->fd);
    sock_reserve_fini(&door->reserve);
    door->ops = NULL;
}
