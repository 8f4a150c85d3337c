/* doctor_facts.c - facts of this machine for `commctl doctor`: files of /proc and /sys, and
 * connections to commds of nodes that are not up, which are closed at once. (One that is up is
 * reached by the link to it, and would log a stranger.) What cannot be read is not known; nothing
 * is changed. */
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/timex.h>
#include <time.h>

#include "client/ctl/doctor.h"
#include "client/ctl/stack.h"
#include "client/ctl/words.h"
#include "shm/util/wait.h"

/* ---- files -------------------------------------------------------------------------------- */

/* The number behind @word in @path; behind nothing, if @word is "". */
static int64_t number_in(const char *path, const char *word)
{
    char text[8192], *at, *end;
    int64_t number;

    if (!read_text(path, text, sizeof(text)) || !(at = strstr(text, word)))
        return DOCTOR_UNKNOWN;
    at += strlen(word);
    number = strtoll(at, &end, 10);
    return end == at ? DOCTOR_UNKNOWN : number;
}

/* The last of three numbers, as of net.ipv4.tcp_rmem. */
static int64_t third_number(const char *path)
{
    char text[256];
    long long number;

    if (!read_text(path, text, sizeof(text)) || sscanf(text, "%*d %*d %lld", &number) != 1)
        return DOCTOR_UNKNOWN;
    return number;
}

/* Of the process's own cgroup and those above it, the smallest. */
static int64_t cpu_limit_pct(int64_t pid)
{
    char path[64], text[4096], file[4200], *group, *slash;
    int64_t least = DOCTOR_UNKNOWN;

    snprintf(path, sizeof(path), "/proc/%lld/cgroup", (long long)pid);
    if (!read_text(path, text, sizeof(text)) || !(group = strstr(text, "0::/")))
        return DOCTOR_UNKNOWN;
    group += strlen("0::");
    group[strcspn(group, "\n")] = '\0';
    while ((slash = strrchr(group, '/'))) {
        long long quota, period;
        char max[64];

        snprintf(file, sizeof(file), "/sys/fs/cgroup%s/cpu.max", group);
        if (read_text(file, max, sizeof(max)) && sscanf(max, "%lld %lld", &quota, &period) == 2 &&
            period > 0 && (least < 0 || quota * 100 / period < least))
            least = quota * 100 / period;
        *slash = '\0';
    }
    return least;
}

/* Of all CPUs: ticks, and those that the host took. */
static bool read_ticks(long long *ret_all, long long *ret_stolen)
{
    long long t[8];
    char text[512];

    if (!read_text("/proc/stat", text, sizeof(text)) ||
        sscanf(text, "cpu %lld %lld %lld %lld %lld %lld %lld %lld", &t[0], &t[1], &t[2], &t[3],
               &t[4], &t[5], &t[6], &t[7]) != 8)
        return false;
    *ret_all = 0;
    for (unsigned i = 0; i < ARRAY_LEN(t); i++)
        *ret_all += t[i];
    *ret_stolen = t[7];
    return true;
}

static int64_t stolen_pct(unsigned ms)
{
    struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000l};
    long long all, stolen, all_then, stolen_then;

    if (!read_ticks(&all, &stolen))
        return DOCTOR_UNKNOWN;
    nanosleep(&ts, NULL);
    if (!read_ticks(&all_then, &stolen_then) || all_then <= all)
        return DOCTOR_UNKNOWN;
    return (stolen_then - stolen) * 100 / (all_then - all);
}

static int64_t clock_synced(void)
{
    struct timex timex = {0};
    int state = adjtimex(&timex);

    if (state < 0)
        return DOCTOR_UNKNOWN;
    return state != TIME_ERROR && !(timex.status & STA_UNSYNC);
}

static int64_t cpus_of(int64_t pid)
{
    cpu_set_t set;

    return sched_getaffinity((pid_t)pid, sizeof(set), &set) ? DOCTOR_UNKNOWN : CPU_COUNT(&set);
}

void doctor_check_config(char ret_unwell[DOCTOR_TEXT])
{
    static const char file[] = COMMD_SYSCONFDIR "/commd/commd.yaml";
    static const char program[] = COMMD_SBINDIR "/commd";
    FILE *out;

    *ret_unwell = '\0';
    if (geteuid() || access(file, R_OK) || access(program, X_OK)) /* others may not read the key */
        return;
    /* names of nodes may have to be looked up */
    out = popen("timeout 10 " COMMD_SBINDIR "/commd --check-config --config " COMMD_SYSCONFDIR
                "/commd/commd.yaml 2>&1",
                "re");
    if (!out)
        return;
    if (!fgets(ret_unwell, DOCTOR_TEXT, out))
        *ret_unwell = '\0';
    ret_unwell[strcspn(ret_unwell, "\n")] = '\0';
    while (fgetc(out) != EOF)
        ; /* or it would end by SIGPIPE */
    if (pclose(out) == 0)
        *ret_unwell = '\0';
}

void doctor_look_here(int64_t commd_pid, unsigned ms, struct doctor_facts *facts)
{
    int64_t pid = commd_pid > 0 ? commd_pid : getpid();
    char limits[64];

    snprintf(limits, sizeof(limits), "/proc/%lld/limits", (long long)pid);
    facts->open_files = number_in(limits, "Max open files");
    facts->memory = number_in("/proc/meminfo", "MemTotal:");
    facts->available = number_in("/proc/meminfo", "MemAvailable:");
    facts->cpus = cpus_of(pid);
    facts->cpu_limit_pct = cpu_limit_pct(pid);
    facts->clock_synced = clock_synced();
    facts->tcp_rmem = third_number("/proc/sys/net/ipv4/tcp_rmem");
    facts->tcp_wmem = third_number("/proc/sys/net/ipv4/tcp_wmem");
    facts->leases = number_in("/proc/sys/fs/leases-enable", "");
    facts->stolen_pct = stolen_pct(ms);
}

/* ---- nodes -------------------------------------------------------------------------------- */

/* "10.0.0.1:18400", "[::1]:18400" */
static struct addrinfo *resolve(const char *address)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST}, *found = NULL;
    const char *colon = strrchr(address, ':');
    char host[256];
    size_t len;

    if (!colon)
        return NULL;
    len = (size_t)(colon - address);
    if (*address == '[' && len >= 2) {
        address++;
        len -= 2;
    }
    if (len >= sizeof(host))
        return NULL;
    memcpy(host, address, len);
    host[len] = '\0';
    if (getaddrinfo(host, colon + 1, &hints, &found) == 0)
        return found;
    hints.ai_flags = 0;
    return getaddrinfo(host, colon + 1, &hints, &found) == 0 ? found : NULL;
}

/* Of the way there, as far as the kernel has learned it. */
static int64_t mtu_of(int fd)
{
    int mtu = 0;
    socklen_t len = sizeof(mtu);

    if (getsockopt(fd, IPPROTO_IP, IP_MTU, &mtu, &len) == 0 ||
        getsockopt(fd, IPPROTO_IPV6, IPV6_MTU, &mtu, &len) == 0)
        return mtu;
    return DOCTOR_UNKNOWN;
}

/* A socket on its way, or -1 with the error in the node. A datagram socket sends nothing and knows
 * the way at once. */
static int begin_connect(struct doctor_node *node, int type)
{
    struct addrinfo *to = *node->address ? resolve(node->address) : NULL;
    int fd = to ? socket(to->ai_family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0) : -1;

    if (to && fd < 0) {
        node->connect_error = errno;
    } else if (to && connect(fd, to->ai_addr, to->ai_addrlen) && errno != EINPROGRESS) {
        node->connect_error = errno;
        close_fdp(&fd);
    }
    if (to)
        freeaddrinfo(to);
    return fd;
}

static void look_at_way(struct doctor_node *node)
{
    _cleanup_(close_fdp) int fd = begin_connect(node, SOCK_DGRAM);

    if (fd >= 0)
        node->mtu = mtu_of(fd);
}

static void end_connect(struct doctor_node *node, int fd, bool ready)
{
    int error = ETIMEDOUT;
    socklen_t len = sizeof(error);

    if (ready && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len))
        error = errno;
    node->connect_error = error;
    close(fd);
}

void doctor_look_at_nodes(struct doctor_facts *facts, unsigned ms)
{
    _cleanup_(freep) struct pollfd *fds = calloc(facts->nnodes + 1, sizeof(*fds));
    int64_t until = (int64_t)now_ms() + ms;
    unsigned left = 0;

    for (unsigned i = 0; i < facts->nnodes; i++) {
        enum node_state state;

        facts->nodes[i].connect_error = DOCTOR_UNKNOWN;
        facts->nodes[i].mtu = DOCTOR_UNKNOWN;
        look_at_way(&facts->nodes[i]);
        if (!fds)
            continue;
        fds[i] = (struct pollfd){.fd = -1, .events = POLLOUT};
        /* a node that drains is linked, and would log a connection that is only tried */
        state = read_word(NODE_WORDS, facts->nodes[i].state);
        if (state != NODE_UP && state != NODE_DRAINING)
            fds[i].fd = begin_connect(&facts->nodes[i], SOCK_STREAM);
        left += fds[i].fd >= 0;
    }
    while (left && (int64_t)now_ms() < until) {
        if (poll(fds, facts->nnodes, (int)(until - (int64_t)now_ms())) <= 0)
            continue;
        for (unsigned i = 0; i < facts->nnodes; i++)
            if (fds[i].fd >= 0 && fds[i].revents) {
                end_connect(&facts->nodes[i], fds[i].fd, true);
                fds[i].fd = -1;
                left--;
            }
    }
    for (unsigned i = 0; i < facts->nnodes && left; i++)
        if (fds[i].fd >= 0)
            end_connect(&facts->nodes[i], fds[i].fd, false);
}
