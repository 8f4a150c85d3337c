/* stack.c - what the culprit does, as far as its own user, or root, sees it from outside.
 *
 * py-spy reads its Python stack, where py-spy is installed. With --nonblocking it reads the memory
 * of the process and does not stop it: nothing here may change what the process does. To stop a
 * process that is in the kernel may hang. A hook in the process that answers a signal would end its
 * sleep() and poll(), and would not answer while the process is in the kernel.
 *
 * py-spy is looked for in $PATH, and, by others than root, beside the Python of the process. What
 * it writes is bounded, and printed without control characters. */
#include "client/ctl/stack.h"

#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "shm/util/wait.h"

enum { FRAMES_MOST = 12, ANSWER_MS = 2000, ANSWER_MOST = 16384, CANNOT_EXEC = 127 };

bool read_text(const char *path, char *buf, size_t size)
{
    _cleanup_(close_fdp) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, buf, size - 1);

    buf[MAX(n, (ssize_t)0)] = 0;
    return n > 0;
}

/* The line "@key:\t..." of /proc/@pid/status, without the key; "": there is none. */
static void status_line(uint32_t pid, const char *key, char *buf, size_t size)
{
    char path[64], text[4096], mark[32], *line;

    buf[0] = 0;
    snprintf(path, sizeof(path), "/proc/%u/status", pid);
    snprintf(mark, sizeof(mark), "\n%s:\t", key);
    text[0] = '\n'; /* as ahead of each line but the first */
    if (!read_text(path, text + 1, sizeof(text) - 1) || !(line = strstr(text, mark)))
        return;
    line += strlen(mark);
    snprintf(buf, size, "%.*s", (int)strcspn(line, "\n"), line);
}

bool stack_same_pids(uint32_t commd_pid)
{
    char name[64], spaces[64];
    size_t n;

    status_line(commd_pid, "Name", name, sizeof(name));
    status_line(commd_pid, "NSpid", spaces, sizeof(spaces));
    n = strlen(name);
    /* one number: it is in no namespace below ours */
    return n >= 5 && !strcmp(name + n - 5, "commd") && *spaces && !strpbrk(spaces, " \t");
}

static void make_plain(char *text)
{
    for (char *c = text; *c; c++)
        if (*c != '\n' && !isprint((unsigned char)*c))
            *c = '?';
}

/* What descriptor @fd of it is; "": it cannot be seen. */
static void fd_target(uint32_t pid, unsigned fd, char *buf, size_t size)
{
    char path[64];
    ssize_t n;

    snprintf(path, sizeof(path), "/proc/%u/fd/%u", pid, fd);
    n = readlink(path, buf, size - 1);
    buf[MAX(n, (ssize_t)0)] = 0;
    make_plain(buf);
}

static void look_at_output(uint32_t pid, struct process_look *look)
{
    char out[200], err[200];

    fd_target(pid, 1, out, sizeof(out));
    fd_target(pid, 2, err, sizeof(err));
    if (*out && !strcmp(out, err))
        snprintf(look->output, sizeof(look->output), "stdout and stderr go to %s", out);
    else if (*out || *err)
        snprintf(look->output, sizeof(look->output), "stdout goes to %s, stderr to %s",
                 *out ? out : "nowhere", *err ? err : "nowhere");
}

static void look_at_tracer(uint32_t pid, struct process_look *look)
{
    char tracer[32], name[64];
    uint32_t by;

    status_line(pid, "TracerPid", tracer, sizeof(tracer));
    by = (uint32_t)strtoul(tracer, NULL, 10);
    if (!by)
        return;
    status_line(by, "Name", name, sizeof(name));
    make_plain(name);
    snprintf(look->tracer, sizeof(look->tracer), "%s (pid %u)", *name ? name : "a process", by);
}

/* Where its Python may have py-spy beside it. Root executes nothing that users have put somewhere.
 */
static void beside_python(uint32_t pid, char *buf, size_t size)
{
    char path[64], program[PATH_MAX], *slash;
    struct stat st;

    buf[0] = 0;
    snprintf(path, sizeof(path), "/proc/%u", pid);
    if (!geteuid() || stat(path, &st) || st.st_uid != geteuid())
        return;
    snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
    (void)read_text(path, program, sizeof(program));
    slash = strrchr(program, '/');
    if (program[0] == '/' && slash)
        snprintf(buf, size, "%.*s/py-spy", (int)(slash - program), program);
}

/* In the child, which may be killed: to read the memory of a process, as its command line, may have
 * to wait for it. */
_Noreturn static void be_py_spy(uint32_t pid, int out)
{
    char number[16], beside[PATH_MAX];
    char *args[] = {"py-spy", "dump", "--nonblocking", "--full-filenames", "--pid", number, NULL};
    int null = open("/dev/null", O_RDWR);

    snprintf(number, sizeof(number), "%u", pid);
    dup2(null, 0);
    dup2(out, 1);
    dup2(null, 2);
    execvp("py-spy", args);
    beside_python(pid, beside, sizeof(beside));
    if (*beside)
        execv(beside, args);
    _exit(CANNOT_EXEC);
}

/* Until it is at its end, or @buf is full; false: not in time. */
static bool read_answer(int fd, char *buf, size_t size)
{
    int64_t end = (int64_t)now_ms() + ANSWER_MS;
    size_t used = 0;
    ssize_t n = 1;

    while (n && used + 1 < size) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        int64_t left = end - (int64_t)now_ms();

        if (left <= 0 || (poll(&ready, 1, (int)left) < 0 && errno != EINTR))
            break;
        n = ready.revents ? read(fd, buf + used, size - 1 - used) : 1;
        if (n < 0)
            break;
        if (ready.revents)
            used += (size_t)n;
    }
    buf[used] = 0;
    return !n || used + 1 == size;
}

/* Of py-spy's threads, 'Thread 12 (idle): "MainThread"', that whose number is the process's: the
 * lines below it, 'f (/x/y.py:12)'. */
static void keep_frames(uint32_t pid, char *text, char *ret_stack)
{
    char main_thread[32], *save = NULL;
    unsigned n = 0;
    size_t used = 0;
    bool within = false;

    make_plain(text);
    snprintf(main_thread, sizeof(main_thread), "Thread %u ", pid);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        size_t left = STACK_TEXT - used;

        if (*line != ' ') {
            within = starts_with(line, main_thread);
            continue;
        }
        line += strspn(line, " ");
        if (!within || n++ >= FRAMES_MOST || strlen(line) + 2 > left)
            continue;
        used += (size_t)snprintf(ret_stack + used, left, "%s%s", used ? "\n" : "", line);
    }
}

static void look_at_stack(uint32_t pid, struct process_look *look)
{
    char text[ANSWER_MOST];
    int out[2], status = 0;
    bool complete;
    pid_t child;

    snprintf(look->no_stack, sizeof(look->no_stack), "py-spy cannot be started");
    if (pipe2(out, O_CLOEXEC))
        return;
    child = fork();
    if (!child)
        be_py_spy(pid, out[1]);
    close(out[1]);
    complete = child > 0 && read_answer(out[0], text, sizeof(text));
    close(out[0]);
    if (child < 0)
        return;
    if (!complete)
        kill(child, SIGKILL);
    waitpid(child, &status, 0);
    if (!complete) {
        snprintf(look->no_stack, sizeof(look->no_stack), "py-spy gave none within %d s",
                 ANSWER_MS / 1000);
        return;
    }
    keep_frames(pid, text, look->stack);
    if (WIFEXITED(status) && WEXITSTATUS(status) == CANNOT_EXEC)
        snprintf(look->no_stack, sizeof(look->no_stack),
                 "py-spy would show it: pip install py-spy, then ask again, or: py-spy dump "
                 "--nonblocking --pid %u",
                 pid);
    else
        snprintf(look->no_stack, sizeof(look->no_stack),
                 "py-spy gives none: it is not in Python, or only its own user or root may look");
}

void stack_look(uint32_t pid, struct process_look *ret_look)
{
    assert(pid);
    *ret_look = (struct process_look){0};
    look_at_output(pid, ret_look);
    look_at_tracer(pid, ret_look);
    look_at_stack(pid, ret_look);
}
