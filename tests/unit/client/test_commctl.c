/* test_commctl.c - the real commctl against a daemon that this test plays: its whole output, for
 * people and for programs, and its exit codes.
 *
 * One thread: commctl is started with its output going to files, then the test accepts its
 * connection and speaks the protocol, then waits for it to end. */
#include <fcntl.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "daemon/admin/verbs.h"
#include "shm/proto/codec.h"
#include "tests/lib/frames.h"

extern char **environ;

struct fix {
    char dir[32], path[64];
    int listener, conn;
    pid_t pid;
    char out[16384], err[4096];
};

static char *join(const char *dir, const char *name)
{
    char *path;

    assert_true(asprintf(&path, "%s/%s", dir, name) > 0);
    return path;
}

static int listen_at(const char *path)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    strcpy(sa.sun_path, path);
    assert_int_equal(bind(s, (struct sockaddr *)&sa, sizeof(sa)), 0);
    assert_int_equal(listen(s, 4), 0);
    return s;
}

static int setup(void **state)
{
    struct fix *f = calloc(1, sizeof(*f));

    strcpy(f->dir, "/tmp/commctl-test-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->path, sizeof(f->path), "%s/sock", f->dir);
    f->listener = listen_at(f->path);
    f->conn = -1;
    unsetenv("COMMD_SOCKET");
    unsetenv("XDG_RUNTIME_DIR");
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    static const char *const names[] = {"sock", "out", "err", "commd/commd.sock", "commd", ""};
    struct fix *f = *state;

    close_fdp(&f->listener);
    close_fdp(&f->conn);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char *path = join(f->dir, names[i]);

        remove(path);
        free(path);
    }
    free(f);
    return 0;
}

/* Starts commctl with @args (a NULL-terminated list after argv[0]). */
static void start(struct fix *f, const char *const *args)
{
    const char *program = getenv("COMMCTL") ? getenv("COMMCTL") : "client/ctl/commctl";
    const char *argv[12] = {"commctl"};
    char *out = join(f->dir, "out"), *err = join(f->dir, "err");
    posix_spawn_file_actions_t actions;

    for (int i = 0; args[i]; i++)
        argv[i + 1] = args[i];
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, out, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, err, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    assert_int_equal(posix_spawn(&f->pid, program, &actions, NULL, (char **)argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    free(out);
    free(err);
}
#define START(f, ...) start(f, (const char *const[]){__VA_ARGS__, NULL})

static void read_file(struct fix *f, const char *name, char *to, size_t size)
{
    char *path = join(f->dir, name);
    FILE *file = fopen(path, "r");

    assert_non_null(file);
    to[fread(to, 1, size - 1, file)] = 0;
    fclose(file);
    free(path);
}

static int finish(struct fix *f)
{
    int status;

    assert_int_equal(waitpid(f->pid, &status, 0), f->pid);
    assert_true(WIFEXITED(status));
    read_file(f, "out", f->out, sizeof(f->out));
    read_file(f, "err", f->err, sizeof(f->err));
    close_fdp(&f->conn);
    return WEXITSTATUS(status);
}

static void accept_one(struct fix *f)
{
    f->conn = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(f->conn >= 0);
}

static void expect(struct fix *f, enum msg_type type, struct msg *msg)
{
    const char *why;
    unsigned nfds;

    assert_int_equal(msg_recv_fd(f->conn, msg, NULL, 0, &nfds, -1, &why), 0);
    assert_int_equal(msg->type, type);
}

static void answer(struct fix *f, const struct msg *msg)
{
    assert_int_equal(msg_send_fd(f->conn, msg, NULL, 0, -1), 0);
}

/* As far as the question, which must be @verb. */
static void welcome(struct fix *f, const char *verb)
{
    struct msg msg, hello = {.type = MSG_WELCOME};

    accept_one(f);
    expect(f, MSG_CLIENT_HELLO, &msg);
    assert_int_equal(msg.client_hello.version, MSG_VERSION);
    assert_int_equal(msg.client_hello.admin, 1);
    assert_string_equal(msg.client_hello.program, "commctl");
    hello.welcome = (struct msg_welcome){
        .version = MSG_VERSION, .pid = 42, .incarnation = 7, .node = "node-a", .cluster = "lab"};
    answer(f, &hello);
    expect(f, MSG_ADMIN, &msg);
    assert_string_equal(msg.admin.verb, verb);
}

/* ---- tables ------------------------------------------------------------------------------ */

static struct msg_column status_columns[] = {
    {"node", "Node", MSG_CELL_STRING},       {"version", "Version", MSG_CELL_STRING},
    {"uptime_s", "Uptime", MSG_CELL_NUMBER}, {"insecure", "Insecure", MSG_CELL_BOOL},
    {"fabric", "Fabric", MSG_CELL_STRING},
};
static char *status_cells[] = {"node-a", "0.9.1", "12", "false", ""};
static struct msg_table status_table = {"status", 5, 1, status_columns, status_cells};

static struct msg_column node_columns[] = {
    {"node", "NODE", MSG_CELL_STRING},
    {"since_s", "SINCE", MSG_CELL_NUMBER},
    {"last_error", "LAST ERROR", MSG_CELL_STRING},
    {"secure", "SECURE", MSG_CELL_BOOL},
};
static char *node_cells[] = {"node-a",
                             "1200",
                             "",
                             "yes", //
                             "\"b\" \\ \xc3\xbc",
                             "3.5",
                             "timed out",
                             "0",
                             "c",
                             "",
                             "",
                             ""};
static struct msg_table node_table = {"nodes", 4, 3, node_columns, node_cells};

static void answer_tables(struct fix *f, struct msg_table *tables, uint32_t n, bool healthy,
                          const char *text)
{
    struct msg msg = {.type = MSG_TABLES};

    msg.tables = (struct msg_tables){.healthy = healthy, .ntables = n, .tables = tables};
    snprintf(msg.tables.text, sizeof(msg.tables.text), "%s", text);
    answer(f, &msg);
}

/* Where python3 exists, its parser has a say too. */
static void assert_is_json(struct fix *f)
{
    char command[256];

    snprintf(command, sizeof(command),
             "! command -v python3 >/dev/null || python3 -m json.tool %s/out >/dev/null", f->dir);
    assert_int_equal(system(command), 0);
}

static void status_is_a_list(void **state)
{
    struct fix *f = *state;

    START(f, "--socket", f->path, "status");
    welcome(f, "status");
    answer_tables(f, &status_table, 1, true, "");
    assert_int_equal(finish(f), 0);
    assert_string_equal(f->err, "");
    assert_string_equal(f->out, "Node      node-a\n"
                                "Version   0.9.1\n"
                                "Uptime    12\n"
                                "Insecure  no\n"
                                "Fabric    -\n");
}

static void status_as_json(void **state)
{
    struct fix *f = *state;

    START(f, "status", "--json", "--socket", f->path);
    welcome(f, "status");
    answer_tables(f, &status_table, 1, true, "");
    assert_int_equal(finish(f), 0);
    assert_is_json(f);
    assert_string_equal(f->out, "{\n"
                                "   \"status\": [\n"
                                "      {\n"
                                "         \"node\": \"node-a\",\n"
                                "         \"version\": \"0.9.1\",\n"
                                "         \"uptime_s\": 12,\n"
                                "         \"insecure\": false,\n"
                                "         \"fabric\": null\n"
                                "      }\n"
                                "   ]\n"
                                "}\n");
}

static void unhealthy_says_why(void **state)
{
    struct fix *f = *state;

    START(f, "--socket", f->path, "status");
    welcome(f, "status");
    answer_tables(f, &status_table, 1, false, "engine is down -> restarting it");
    assert_int_equal(finish(f), 1);
    assert_string_equal(f->err, "commctl: engine is down -> restarting it\n");
    assert_non_null(strstr(f->out, "Node      node-a\n"));
}

static void nodes_are_a_table(void **state)
{
    struct fix *f = *state;

    setenv("LC_ALL", "C.UTF-8", 1);
    START(f, "--socket", f->path, "nodes");
    welcome(f, "nodes");
    answer_tables(f, &node_table, 1, true, "");
    assert_int_equal(finish(f), 0);
    assert_string_equal(f->out, "NODE     SINCE  LAST ERROR  SECURE\n"
                                "node-a    1200  -           yes\n"
                                "\"b\" \\ \xc3\xbc    3.5  timed out   no\n"
                                "c            -  -           -\n");
    assert_string_equal(f->err, "");
}

/* A title says the unit; people get the largest of which there is one at least. */
static void units_are_for_people(void **state)
{
    static const struct msg_column columns[] = {
        {"sent", "SENT [bytes]", MSG_CELL_NUMBER}, {"most", "MOST [bytes/s]", MSG_CELL_NUMBER},
        {"rtt_us", "RTT [us]", MSG_CELL_NUMBER},   {"late_ms", "LATE [ms]", MSG_CELL_NUMBER},
        {"since_s", "SINCE [s]", MSG_CELL_NUMBER}, {"text", "TEXT [s]", MSG_CELL_STRING}};
    char *cells[] = {"17179869184", "999",  "1",     "1500",   "1260", "5", "",
                     "2500",        "12.5", "60000", "172800", "a"};
    struct msg_table table = {"way", 6, 2, (struct msg_column *)columns, cells};
    struct fix *f = *state;

    START(f, "--socket", f->path, "nodes");
    welcome(f, "nodes");
    answer_tables(f, &table, 1, true, "");
    assert_int_equal(finish(f), 0);
    assert_string_equal(f->out, " SENT      MOST      RTT     LATE   SINCE  TEXT [s]\n"
                                "17 GB   999 B/s     1 us    1.5 s  21 min  5\n"
                                "    -  2.5 kB/s  12.5 us  1.0 min   2.0 d  a\n");
    START(f, "--socket", f->path, "--json", "nodes");
    welcome(f, "nodes");
    answer_tables(f, &table, 1, true, "");
    assert_int_equal(finish(f), 0);
    assert_non_null(strstr(f->out, "\"sent\": 17179869184,"));
}

static void nodes_as_json(void **state)
{
    struct fix *f = *state;

    START(f, "--socket", f->path, "--json", "nodes");
    welcome(f, "nodes");
    answer_tables(f, &node_table, 1, false, "b is down");
    assert_int_equal(finish(f), 1);
    assert_is_json(f);
    assert_string_equal(f->err, "commctl: b is down\n");
    assert_string_equal(f->out, "{\n"
                                "   \"nodes\": [\n"
                                "      {\n"
                                "         \"node\": \"node-a\",\n"
                                "         \"since_s\": 1200,\n"
                                "         \"last_error\": null,\n"
                                "         \"secure\": true\n"
                                "      },{\n"
                                "         \"node\": \"\\\"b\\\" \\\\ \xc3\xbc\",\n"
                                "         \"since_s\": 3.5,\n"
                                "         \"last_error\": \"timed out\",\n"
                                "         \"secure\": false\n"
                                "      },{\n"
                                "         \"node\": \"c\",\n"
                                "         \"since_s\": null,\n"
                                "         \"last_error\": null,\n"
                                "         \"secure\": null\n"
                                "      }\n"
                                "   ]\n"
                                "}\n");
}

static void several_tables(void **state)
{
    struct fix *f = *state;
    struct msg_table empty = {"groups", 1, 0, node_columns, NULL};
    struct msg_table tables[] = {status_table, empty, status_table};

    START(f, "--socket", f->path, "--json", "groups");
    welcome(f, "groups");
    strcpy(tables[2].name, "more");
    answer_tables(f, tables, 3, true, "");
    assert_int_equal(finish(f), 0);
    assert_is_json(f);
    assert_non_null(strstr(f->out, "\n   ],\n   \"groups\": [\n"));
    assert_non_null(strstr(f->out, "\n   ],\n   \"more\": [\n"));

    START(f, "--socket", f->path, "groups");
    welcome(f, "groups");
    answer_tables(f, tables, 2, true, "");
    assert_int_equal(finish(f), 0);
    assert_string_equal(f->out, "Node    Version  Uptime  Insecure  Fabric\n"
                                "node-a  0.9.1        12  no        -\n"
                                "\n"
                                "no groups\n");

    START(f, "--socket", f->path, "--json", "groups");
    welcome(f, "groups");
    answer_tables(f, NULL, 0, true, "");
    assert_int_equal(finish(f), 0);
    assert_string_equal(f->out, "{}\n");
}

/* Nodes answer in any order; what is shown again and again must not jump. */
static void rows_of_all_nodes_are_in_order(void **state)
{
    static struct msg_column columns[] = {{"node", "NODE", MSG_CELL_STRING},
                                          {"peer", "PEER", MSG_CELL_STRING}};
    char *cells[] = {"n10", "n2", "n2", "n10", "n10", NULL, "n2", "n1"};
    struct msg_table links = {"links", 2, 4, columns, cells};
    struct fix *f = *state;

    START(f, "--socket", f->path, "links");
    welcome(f, "ranks");
    answer_tables(f, &links, 1, true, "");
    assert_int_equal(finish(f), 0);
    assert_string_equal(f->out, "NODE  PEER\n"
                                "n2    n1\n"
                                "n2    n10\n"
                                "n10   -\n"
                                "n10   n2\n");
}

/* Of links what is not well comes first: down, then lost data, then what crawls. */
static void links_that_are_not_well_come_first(void **state)
{
    static struct msg_column columns[] = {
        {"node", "NODE", MSG_CELL_STRING},          {"peer", "PEER", MSG_CELL_STRING},
        {"state", "STATE", MSG_CELL_STRING},        {"segments", "SEGMENTS", MSG_CELL_NUMBER},
        {"retransmits", "RESENT", MSG_CELL_NUMBER}, {"rtt_us", "RTT", MSG_CELL_NUMBER},
        {"min_rtt_us", "LEAST", MSG_CELL_NUMBER},   {"rate", "SENDS", MSG_CELL_NUMBER},
        {"bandwidth", "MOST", MSG_CELL_NUMBER}};
    char *cells[] = {
        "a", "b", "up",   "1000", "0",  "100",   "90", "5",  "100", /* well */
        "a", "c", "up",   "1000", "20", "100",   "90", "5",  "100", /* loses */
        "b", "a", "up",   "1000", "0",  "90000", "90", "9",  "100", /* crawls */
        "b", "c", "up",   "1000", "0",  "90000", "90", "10", "100", /* not that much: well */
        "c", "a", "down", NULL,   NULL, NULL,    NULL, NULL, NULL,
        "c", "b", "up",   "1000", "21", "100",   "90", "5",  "100",
    };
    struct msg_table links = {"links", ARRAY_LEN(columns), 6, columns, cells};
    static const char *const order[] = {"c     a", "c     b", "a     c",
                                        "b     a", "a     b", "b     c"};
    struct fix *f = *state;
    const char *line;

    START(f, "--socket", f->path, "links");
    welcome(f, "ranks");
    answer_tables(f, &links, 1, true, "");
    assert_int_equal(finish(f), 0);
    line = f->out;
    for (unsigned i = 0; i < ARRAY_LEN(order); i++) {
        line = strchr(line, '\n');
        assert_non_null(line++);
        assert_memory_equal(line, order[i], strlen(order[i]));
    }
}

/* Of a group that nobody is in yet each node that waits for its ranks has a row. */
static void rows_without_a_rank_are_in_order(void **state)
{
    static struct msg_column columns[] = {{"name", "NAME", MSG_CELL_STRING},
                                          {"group", "GROUP", MSG_CELL_STRING},
                                          {"rank", "RANK", MSG_CELL_NUMBER},
                                          {"node", "NODE", MSG_CELL_STRING},
                                          {"missing", "MISSING", MSG_CELL_STRING}};
    char *rows[] = {"g", "1", NULL, "b", "0,1", "g", "1", NULL, "a", "0,1"};
    struct msg_table ranks = {"ranks", ARRAY_LEN(columns), 2, columns, rows};
    struct fix *f = *state;
    const char *a, *b;

    START(f, "--socket", f->path, "--json", "ranks");
    welcome(f, "ranks");
    answer_tables(f, &ranks, 1, true, "");
    assert_int_equal(finish(f), 0);
    a = strstr(f->out, "\"a\"");
    b = strstr(f->out, "\"b\"");
    assert_true(a && b && a < b);
}

/* Also for what no table is made for. */
static void a_full_disk_is_said(void **state)
{
    static const char *const all[] = {"--help", "--version"};
    struct fix *f = *state;
    char *out = join(f->dir, "out");

    assert_int_equal(symlink("/dev/full", out), 0);
    free(out);
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        START(f, all[i]);
        assert_int_equal(finish(f), 2);
        assert_string_equal(f->err, "commctl: cannot write to stdout (No space left on device)\n");
    }
}

static void version_of_both(void **state)
{
    struct fix *f = *state;
    char both[160];

    START(f, "--socket", f->path, "version");
    welcome(f, "status");
    answer_tables(f, &status_table, 1, false, "");
    assert_int_equal(finish(f), 0);
    snprintf(both, sizeof(both),
             "commctl    0.1.0\n"
             "commd      0.9.1\n"
             "engine     -\n"
             "commd_gpu  -\n"
             "protocol   %d\n"
             "node       node-a\n",
             MSG_VERSION);
    assert_string_equal(f->out, both);
}

static void show_config_asks_for_config(void **state)
{
    struct fix *f = *state;

    START(f, "--socket", f->path, "show", "config");
    welcome(f, "config");
    answer_tables(f, NULL, 0, true, "");
    assert_int_equal(finish(f), 0);
}

static void tuning_is_asked_of_commd(void **state)
{
    struct fix *f = *state;

    START(f, "--socket", f->path, "tuning");
    welcome(f, "tuning");
    answer_tables(f, &node_table, 1, true, "");
    assert_int_equal(finish(f), 0);
    assert_ptr_equal(strstr(f->out, "NODE "), f->out);

    START(f, "--socket", f->path, "show", "tuning");
    welcome(f, "tuning"); /* of an older commd */
    answer_tables(f, NULL, 0, false, "commd 0.0.9 does not know \"tuning\"; it knows status");
    assert_int_equal(finish(f), 1);
    assert_string_equal(f->err, "commctl: commd 0.0.9 does not know \"tuning\"; it knows status\n");
}

/* ---- could not ask ----------------------------------------------------------------------- */

#define assert_err(f, format, ...)                                                                 \
    do {                                                                                           \
        char want_[1024];                                                                          \
                                                                                                   \
        snprintf(want_, sizeof(want_), "commctl: " format "\n", __VA_ARGS__);                      \
        assert_string_equal((f)->err, want_);                                                      \
        assert_string_equal((f)->out, "");                                                         \
    } while (0)

static void nobody_listens(void **state)
{
    struct fix *f = *state;
    char long_path[200];

    close_fdp(&f->listener);
    START(f, "--socket", f->path, "status");
    assert_int_equal(finish(f), 2);
    assert_err(f,
               "%s: no commd is listening there (Connection refused); is the service running? "
               "systemctl status commd",
               f->path);
    remove(f->path);
    setenv("COMMD_SOCKET", f->path, 1);
    START(f, "status");
    assert_int_equal(finish(f), 2);
    assert_err(f,
               "%s: no commd is listening there (No such file or directory); is the service "
               "running? systemctl status commd",
               f->path);
    memset(long_path, 'x', sizeof(long_path) - 1);
    long_path[sizeof(long_path) - 1] = 0;
    START(f, "--socket", long_path, "status");
    assert_int_equal(finish(f), 2);
    assert_err(f, "%s: too long for a socket's path (107 bytes); use a shorter one", long_path);
}

/* What is installed can be told where nothing runs. */
static void version_without_a_commd(void **state)
{
    struct fix *f = *state;

    close_fdp(&f->listener);
    START(f, "--socket", f->path, "version");
    assert_int_equal(finish(f), 2);
    assert_string_equal(f->out, "commctl  0.1.0\n");
    assert_non_null(strstr(f->err, "no commd is listening there"));
    START(f, "--socket", f->path, "--json", "version");
    assert_int_equal(finish(f), 2);
    assert_non_null(strstr(f->out, "\"commctl\": \"0.1.0\""));
    assert_null(strstr(f->out, "\"commd\""));
}

static void the_named_socket_wins(void **state)
{
    struct fix *f = *state;

    setenv("COMMD_SOCKET", "/nonexistent/sock", 1);
    START(f, "--socket", f->path, "status");
    welcome(f, "status");
    answer_tables(f, &status_table, 1, true, "");
    assert_int_equal(finish(f), 0);
    setenv("COMMD_SOCKET", f->path, 1);
    START(f, "status");
    welcome(f, "status");
    answer_tables(f, &status_table, 1, true, "");
    assert_int_equal(finish(f), 0);
}

/* Only where no system daemon runs: then the user's own is asked. */
static void the_users_own(void **state)
{
    struct fix *f = *state;
    char *dir = join(f->dir, "commd"), *path = join(dir, "commd.sock");

    if (access("/run/commd/commd.sock", F_OK) == 0) {
        print_message("[  SKIPPED ] a system commd is installed and running here\n");
        free(dir);
        free(path);
        return;
    }
    setenv("XDG_RUNTIME_DIR", f->dir, 1);
    START(f, "status");
    assert_int_equal(finish(f), 2);
    assert_err(f,
               "/run/commd/commd.sock: no commd is listening there (No such file or directory), "
               "nor at %s; is the service running? systemctl status commd",
               path);
    assert_int_equal(mkdir(dir, 0700), 0);
    close_fdp(&f->listener);
    f->listener = listen_at(path);
    START(f, "status");
    welcome(f, "status");
    answer_tables(f, &status_table, 1, true, "");
    assert_int_equal(finish(f), 0);
    free(dir);
    free(path);
}

static void not_a_commd(void **state)
{
    static const struct {
        const char *bytes;
        size_t len;
        const char *err;
    } cases[] = {
        {"HTTP/1.1 400 Bad Request\r\n", 26, "answered, but is not commd (not a commd frame)"},
        {"cd\0\0\1\0\0\0?", 9, "answered, but is not commd (malformed message)"},
        {"cd\0\0\0\0\0\x7f", 8, "answered, but is not commd (frame too large)"},
        {"cd\1\0", 4,
         "answered, but speaks another version of commd's protocol; use the commctl that came "
         "with it"},
        {"cd\0\0\3\0\0\0\x92\x03\0", 11,
         "answered, but not what was asked (PING instead of WELCOME)"},
        {"", 0,
         "connected, but closed without an answer; it is not commd, or commd is shutting down"},
    };
    struct fix *f = *state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint8_t *bytes = frame_bytes(cases[i].bytes, cases[i].len);
        struct msg msg;

        START(f, "--socket", f->path, "status");
        accept_one(f);
        expect(f, MSG_CLIENT_HELLO, &msg);
        assert_int_equal(write(f->conn, bytes, cases[i].len), (ssize_t)cases[i].len);
        free(bytes);
        close_fdp(&f->conn);
        assert_int_equal(finish(f), 2);
        assert_err(f, "%s: %s", f->path, cases[i].err);
    }
}

static void refused(void **state)
{
    struct fix *f = *state;
    struct msg msg = {.type = MSG_REFUSED};

    START(f, "--socket", f->path, "status");
    accept_one(f);
    msg.refused = (struct msg_refused){CAUSE_QUOTA, "64 clients are connected already"};
    answer(f, &msg);
    close_fdp(&f->conn); /* at once, before the hello is read */
    assert_int_equal(finish(f), 2);
    assert_err(f, "%s: refused (quota exceeded): 64 clients are connected already", f->path);
}

static void ends_after_the_welcome(void **state)
{
    struct fix *f = *state;

    START(f, "--socket", f->path, "status");
    welcome(f, "status");
    close_fdp(&f->conn);
    assert_int_equal(finish(f), 2);
    assert_err(f,
               "%s: commd closed the connection before it answered; see its log: journalctl -u "
               "commd",
               f->path);
}

static void never_answers(void **state)
{
    struct fix *f = *state;

    START(f, "--socket", f->path, "--timeout", "0.02", "status"); /* never accepted */
    assert_int_equal(finish(f), 2);
    assert_err(f, "%s: no answer within 0.02 s; commd is busy or stopped: journalctl -u commd",
               f->path);
}

/* ---- verbs ------------------------------------------------------------------------------- */

/* The words of each verb in commctl's help, as "status" or "show config". */
static unsigned help_verbs(struct fix *f, char ret_words[][32], unsigned room)
{
    unsigned n = 0;

    START(f, "--help");
    assert_int_equal(finish(f), 0);
    for (char *line = strstr(f->out, "\n  "); line && n < room; line = strchr(line + 1, '\n')) {
        size_t len = strcspn(line + 3, "\n"), words = 0;

        if (strncmp(line, "\n  ", 3) || len < 2)
            break; /* options follow behind an empty line */
        while (words < len && strncmp(line + 3 + words, "  ", 2))
            words++;
        snprintf(ret_words[n], 32, "%.*s", (int)words, line + 3);
        n += strcmp(ret_words[n], "help") != 0;
    }
    return n;
}

/* What commctl asks commd when these words are typed; answered, so that it ends. */
static void asked_by(struct fix *f, const char *typed, char ret_verb[MSG_NAME_MAX])
{
    struct msg msg, hello = {.type = MSG_WELCOME};
    char buf[64], *words[4] = {NULL}, *save;
    unsigned n = 0;

    snprintf(buf, sizeof(buf), "%s", typed);
    for (char *word = strtok_r(buf, " ", &save); word && n < 4; word = strtok_r(NULL, " ", &save))
        words[n++] = word;
    START(f, "--socket", f->path, words[0], words[1], words[2], words[3]);
    accept_one(f);
    expect(f, MSG_CLIENT_HELLO, &msg);
    hello.welcome = (struct msg_welcome){
        .version = MSG_VERSION, .pid = 42, .incarnation = 7, .node = "node-a", .cluster = "lab"};
    answer(f, &hello);
    expect(f, MSG_ADMIN, &msg);
    snprintf(ret_verb, MSG_NAME_MAX, "%s", msg.admin.verb);
    answer_tables(f, NULL, 0, true, "");
    assert_int_equal(finish(f), 0);
}

static void verbs_are_those_of_commd(void **state)
{
#define NAME(name) #name,
    static const char *const known[] = {ADMIN_VERBS(NAME) CHANGE_VERBS(NAME) GATHER_VERB};
    static const char *const more[] = {"drain --undo", "kick g", "kick pid 1", "kick rank g 1",
                                       "log-level debug"};
#undef NAME
    struct fix *f = *state;
    char words[24][32], verb[MSG_NAME_MAX];
    bool asked[ARRAY_LEN(known)] = {0};
    unsigned n = help_verbs(f, words, ARRAY_LEN(words));

    assert_true(n >= 10 && n < ARRAY_LEN(words));
    for (unsigned i = 0; i < n + ARRAY_LEN(more); i++) {
        size_t k = 0;

        if (i < n && (!strcmp(words[i], "kick") || !strcmp(words[i], "doctor")))
            continue; /* whom is in more[]; it asks for several */
        asked_by(f, i < n ? words[i] : more[i - n], verb);
        while (k < ARRAY_LEN(known) && strcmp(known[k], verb))
            k++;
        if (k == ARRAY_LEN(known))
            fail_msg("commctl asks for \"%s\", which daemon/admin/verbs.h lacks", verb);
        asked[k] = true;
    }
    for (size_t k = 0; k < ARRAY_LEN(known); k++)
        if (!asked[k])
            fail_msg("commd answers \"%s\", for which commctl has no words", known[k]);
}

/* ---- usage ------------------------------------------------------------------------------- */

static void usage(void **state)
{
    struct fix *f = *state;
    static const struct {
        const char *args[4];
        int code;
        const char *out, *err;
    } cases[] = {
        {{"--version"}, 0, "commctl 0.1.0\n", ""},
        {{"--help"}, 0, "Usage: commctl [OPTIONS] VERB\n", ""},
        {{"help"}, 0, "Usage: commctl [OPTIONS] VERB\n", ""},
        {{"kick", "--help"}, 0, "Usage: commctl [OPTIONS] kick GROUP | pid PID |", ""},
        {{"help", "why"}, 0, "Usage: commctl [OPTIONS] why [GROUP]\n", ""},
        {{"show", "config", "-h"}, 0, "Usage: commctl [OPTIONS] show config\nevery setting", ""},
        {{NULL},
         2,
         "",
         "commctl: which verb? status, nodes, links, groups, clients, gpus, tenants, "},
        {{"shwo"}, 2, "", "commctl: shwo: no such verb (status, nodes, links, groups, clients, "},
        {{"show", "me"}, 2, "", "commctl: show me: no such verb ("},
        {{"show"}, 2, "", "commctl: show: no such verb ("},
        {{"status", "now"}, 2, "", "commctl: status: now: it takes no words; see commctl --help\n"},
        {{"show", "config", "it"}, 2, "", "commctl: show config: it: it takes no words; see "},
        {{"why", "my", "group"}, 2, "", "commctl: why: group: it takes one GROUP at most; a name "},
        {{"stat"}, 2, "", "commctl: stat: no such verb ("},
        {{"help", "stat"}, 2, "", "commctl: stat: no such verb ("},
        {{"events", "--kind", "start,nosuch"}, 2, "", "commctl: events: --kind nosuch: no such "},
        {{"--frob"}, 2, "", "commctl: unrecognized option '--frob'\nTry: commctl --help\n"},
        {{"--socket", ""}, 2, "", "commctl: --socket: the path is empty\n"},
        {{"drain", "--watch"}, 2, "", "commctl: drain: --watch is not for it\n"},
        {{"status", "--watch=0.1"}, 2, "", "commctl: --watch 0.1: not a number of seconds from "},
        {{"status", "--watch", "1x"}, 2, "", "commctl: --watch 1x: not a number of seconds from "},
        {{"kick"}, 2, "", "commctl: kick: whom? commctl kick GROUP, kick pid PID, or kick rank "},
        {{"kick", "pid", "1x"}, 2, "", "commctl: kick: 1x: not a pid\n"},
        {{"kick", "pid", "99999999999"}, 2, "", "commctl: kick: 99999999999: not a pid\n"},
        {{"kick", "pid"}, 2, "", "commctl: kick: which pid? commctl kick pid PID (a group of "},
        {{"kick", "rank"}, 2, "", "commctl: kick: which rank? commctl kick rank GROUP RANK (a "},
        {{"kick", ""}, 2, "", "commctl: kick: the name of the group is empty\n"},
        {{"drain", "now"}, 2, "", "commctl: drain: now: it is about this node and takes no words"},
        {{"status", "--undo"}, 2, "", "commctl: status: --undo is not for it\n"},
        {{"wait", "--for", "luck"}, 2, "", "commctl: wait: --for luck: ready, nodes=N (1 to 1024)"},
        {{"--timeout", "0"}, 2, "", "commctl: --timeout 0: not a number of seconds above 0, up "},
        {{"--timeout", "1e9"},
         2,
         "",
         "commctl: --timeout 1e9: not a number of seconds above 0, up "},
        {{"--timeout", "nan"},
         2,
         "",
         "commctl: --timeout nan: not a number of seconds above 0, up "},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        start(f, cases[i].args);
        assert_int_equal(finish(f), cases[i].code);
        assert_memory_equal(f->out, cases[i].out, strlen(cases[i].out));
        assert_memory_equal(f->err, cases[i].err, strlen(cases[i].err));
    }
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(status_is_a_list),
        T(status_as_json),
        T(unhealthy_says_why),
        T(nodes_are_a_table),
        T(units_are_for_people),
        T(nodes_as_json),
        T(several_tables),
        T(rows_of_all_nodes_are_in_order),
        T(links_that_are_not_well_come_first),
        T(rows_without_a_rank_are_in_order),
        T(a_full_disk_is_said),
        T(version_of_both),
        T(nobody_listens),
        T(version_without_a_commd),
        T(show_config_asks_for_config),
        T(the_named_socket_wins),
        T(the_users_own),
        T(not_a_commd),
        T(refused),
        T(ends_after_the_welcome),
        T(never_answers),
        T(verbs_are_those_of_commd),
        T(usage),
        T(tuning_is_asked_of_commd),
    };

    setenv("LC_ALL", "C", 1);
    alarm(600); /* a commctl that never connects would let accept() wait for ever */
    return cmocka_run_group_tests_name("commctl", tests, NULL, NULL);
}
