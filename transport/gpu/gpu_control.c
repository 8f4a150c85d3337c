/* gpu_control.c - commd's socket: it says whose sessions there are, and is told of the GPUs. What
 * commd says is believed, as in commd-engine. commd may die and another one come: control.c. */
#include "config.h"

#include "transport/gpu/gpu_op.h"

#include <stdio.h>

enum { CONTROL_AT_ONCE = 32 }; /* frames of commd in one look */

void control_hello(struct gpu *g, bool resumed)
{
    struct msg m = {.type = MSG_GPU_HELLO};

    m.gpu_hello.version = MSG_VERSION;
    m.gpu_hello.pid = (uint32_t)getpid();
    m.gpu_hello.resumed = resumed;
    m.gpu_hello.devices = g->ndevices;
    m.gpu_hello.nccl = (uint32_t)g->nccl.version;
    snprintf(m.gpu_hello.text, sizeof m.gpu_hello.text, "%s", g->ndevices ? g->runs_on : g->why);
    snprintf(m.gpu_hello.build, sizeof m.gpu_hello.build, "%s", COMMD_BUILD_VERSION);
    m.gpu_hello.settings = g->settings;
    control_send(&g->control, &m, -1);
}

/* How many groups have ranks on the device. */
static unsigned device_groups(const struct gpu *g, const struct gdevice *d)
{
    const struct ggroup *gr;
    unsigned n = 0;

    for (unsigned i = 0; i < GROUP_BUCKETS; i++)
        LIST_FOREACH(gr, &g->groups[i], link)
            for (unsigned u = 0; u < gr->nhere; u++)
                n += gr->here[u].dev == d;
    return n;
}

void control_devices(struct gpu *g)
{
    for (unsigned i = 0; i < g->ndevices; i++) {
        const struct gdevice *d = &g->device[i];
        struct msg m = {.type = MSG_GPU_DEVICE};
        char uuid[48];

        device_text(&d->uuid, uuid);
        m.gpu_device.device = i;
        m.gpu_device.clients = d->nsessions;
        m.gpu_device.groups = device_groups(g, d);
        m.gpu_device.communicators = comm_count(g, d);
        m.gpu_device.memory = d->bytes;
        m.gpu_device.mapped = d->mapped;
        m.gpu_device.operations = d->operations;
        m.gpu_device.moved = d->moved;
        snprintf(m.gpu_device.uuid, sizeof m.gpu_device.uuid, "%s", uuid);
        snprintf(m.gpu_device.name, sizeof m.gpu_device.name, "%s", d->name);
        snprintf(m.gpu_device.state, sizeof m.gpu_device.state, "%s",
                 d->state[0] ? d->state : "ok");
        snprintf(m.gpu_device.kernels, sizeof m.gpu_device.kernels, "%s", d->kernels);
        control_send(&g->control, &m, -1);
    }
}

static void control_take(struct gpu *g, const struct msg *m, int *fd)
{
    struct msg pong = {.type = MSG_PING};

    if (m->type == MSG_GPU_SESSION && *fd >= 0) {
        session_new(g, &m->gpu_session, fd);
    } else if (m->type == MSG_GPU_SESSION_DEL) {
        session_del(g, m->gpu_session.client);
    } else if (m->type == MSG_PING && !m->ping.pong) {
        control_devices(g);
        pong.ping.seq = m->ping.seq;
        pong.ping.pong = 1;
        control_send(&g->control, &pong, -1);
    }
}

/* Another commd is there. It ends the sessions of clients that have ended meanwhile. Those that a
 * client got in another way than from commd end with its first one. */
static void control_resume(struct gpu *g)
{
    struct msg m = {.type = MSG_GPU_SESSION};
    const struct gsession *s;

    LIST_FOREACH(s, &g->sessions, link) {
        m.gpu_session = (struct msg_gpu_session){
            .client = s->client, .uid = s->uid, .pid = s->pid, .payer = s->user->uid};
        if (!s->first)
            control_send(&g->control, &m, -1);
    }
    control_hello(g, true);
    control_devices(g);
}

/* The frames that are there, but not all at once; what is left is reported again. */
void control_read(struct gpu *g)
{
    for (unsigned n = 0; n < CONTROL_AT_ONCE && g->running; n++) {
        struct msg m;
        int fd;

        switch (control_next(&g->control, &m, &fd)) {
        case CONTROL_NONE:
            return;
        case CONTROL_END:
            g->running = false;
            return;
        case CONTROL_NEW:
            control_resume(g);
            break;
        case CONTROL_MSG:
            control_take(g, &m, &fd);
            close_fdp(&fd);
            msg_fini(&m);
            break;
        }
    }
}
