/* test_doctor.c - findings from facts that are made up here: a node that is well, and one thing
 * wrong at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "client/ctl/doctor.h"
#include "shm/proto/cause_text.h"

static struct doctor_node nodes[2];

static struct doctor_facts well(void)
{
    nodes[0] = (struct doctor_node){.name = "b",
                                    .address = "10.0.0.2:18400",
                                    .state = "up",
                                    .last_error = "",
                                    .rtt_us = 60,
                                    .sent = 1 << 30,
                                    .bandwidth = 3000000000,
                                    .encryption = LINK_AES_128_GCM,
                                    .encryption_s = 90,
                                    .mtu = 9000};
    nodes[1] = (struct doctor_node){.name = "c",
                                    .address = "10.0.0.3:18400",
                                    .state = "up",
                                    .last_error = "",
                                    .rtt_us = DOCTOR_UNKNOWN,
                                    .mtu = 9000};
    return (struct doctor_facts){.unasked = "",
                                 .unwell = "",
                                 .keys_unwell = "",
                                 .config_unwell = "",
                                 .version = "1",
                                 .own_version = "1",
                                 .fabric = "tcp",
                                 .gpu = "none",
                                 .gpu_text = "gpu.enabled is no",
                                 .latency_us = "30",
                                 .bandwidth = "1G",
                                 .encryption = "auto",
                                 .max_clients = 1000,
                                 .max_groups = 1000,
                                 .open_files = 65536,
                                 .memory = 1 << 20,
                                 .available = 1 << 19,
                                 .cpus = 8,
                                 .cpu_limit_pct = DOCTOR_UNKNOWN,
                                 .stolen_pct = 0,
                                 .clock_synced = 1,
                                 .tcp_rmem = 6 << 20,
                                 .tcp_wmem = 4 << 20,
                                 .leases = 1,
                                 .nodes = nodes,
                                 .nnodes = 2};
}

/* The only finding that is not "ok" is of @level, and has @text in it and in its remedy @remedy. */
static void only(const struct doctor_facts *facts, enum doctor_level level, const char *text,
                 const char *remedy)
{
    struct doctor_findings all;
    unsigned n = 0;

    doctor_judge(facts, &all);
    assert_int_equal(all.error, 0);
    for (unsigned i = 0; i < all.n; i++) {
        const struct doctor_finding *f = &all.at[i];

        assert_true(*f->check && *f->finding);
        if (f->level == DOCTOR_OK) {
            assert_string_equal(f->remedy, "");
            continue;
        }
        n++;
        if (f->level != level || !strstr(f->finding, text) || !strstr(f->remedy, remedy))
            fail_msg("%s: %s: %s -> %s", doctor_level_name(f->level), f->check, f->finding,
                     f->remedy);
    }
    assert_int_equal(n, level == DOCTOR_OK ? 0 : 1);
    doctor_findings_free(&all);
}

static void a_node_that_is_well(void **state)
{
    struct doctor_facts f = well();
    struct doctor_findings all;

    only(&f, DOCTOR_OK, "", "");
    doctor_judge(&f, &all);
    assert_true(all.n >= 10);
    doctor_findings_free(&all);
    /* what is not known is no finding */
    f = (struct doctor_facts){.unasked = "",
                              .unwell = "",
                              .keys_unwell = "",
                              .config_unwell = "",
                              .version = "1",
                              .own_version = "1",
                              .gpu = "",
                              .gpu_text = "",
                              .latency_us = "",
                              .bandwidth = "",
                              .max_clients = -1,
                              .max_groups = -1,
                              .open_files = -1,
                              .memory = -1,
                              .available = -1,
                              .cpus = -1,
                              .cpu_limit_pct = -1,
                              .stolen_pct = -1,
                              .clock_synced = -1,
                              .tcp_rmem = -1,
                              .tcp_wmem = -1,
                              .leases = -1};
    only(&f, DOCTOR_OK, "", "");
}

static void one_thing_is_wrong(void **state)
{
    struct doctor_findings all;
    struct doctor_facts f;

#define WITH(change, level, text, remedy) f = well(), f.change, only(&f, level, text, remedy)
    WITH(unasked = "no commd is listening", DOCTOR_ERROR, "no commd", "systemctl status commd");
    WITH(unwell = "engine down", DOCTOR_ERROR, "engine down", "journalctl");
    WITH(config_unwell = "limits.max_groups", DOCTOR_WARNING, "max_groups", "systemctl reload");
    WITH(config_unwell = TEXT_FILE_WRONG "x", DOCTOR_WARNING, "wrong by now", "a restart fails");
    WITH(config_unwell = TEXT_RELOAD_REFUSED "5 s ago; " TEXT_PROOFS_WRONG "n.key: mode 0440",
         DOCTOR_WARNING, "n.key: mode 0440", "mend that, then systemctl reload");
    WITH(config_unwell = "n.crt " TEXT_PROOFS_NEWER, DOCTOR_WARNING, "is newer", "reload commd");
    WITH(config_unwell = "c.crl " TEXT_LIST_OLD, DOCTOR_WARNING, "c.crl", "make a new list");
    WITH(config_unwell = "the certificate of this node, or of its CA, expires in 5 days",
         DOCTOR_WARNING, "expires in 5 days", "make a new certificate");
    WITH(keys_unwell = "node b offers another key", DOCTOR_WARNING, "another key", "A new key");
    WITH(keys_unwell = "the certificate of this node, or of its CA, expires in 5 days",
         DOCTOR_WARNING, "expires in 5 days", "Certificates");
    WITH(own_version = "2", DOCTOR_WARNING, "commd is 1, commctl 2", "restart commd");
    WITH(open_files = 1024, DOCTOR_WARNING, "may open 1024 files", "LimitNOFILE=");
    WITH(available = 1000, DOCTOR_WARNING, "0 MiB of 1024 MiB are left", "Shmem");
    WITH(cpus = 1, DOCTOR_WARNING, "on 1 CPU", "CPUAffinity");
    WITH(cpu_limit_pct = 50, DOCTOR_WARNING, "50 % of one CPU", "CPUQuota=");
    WITH(stolen_pct = 30, DOCTOR_WARNING, "took 30 %", "virtual machine");
    WITH(clock_synced = 0, DOCTOR_WARNING, "not synchronised", "set-ntp");
    WITH(tcp_wmem = 65536, DOCTOR_WARNING, "64 KiB to send", "net.ipv4.tcp_wmem");
    WITH(leases = 0, DOCTOR_WARNING, "leases-enable is 0", "sysctl");
    WITH(nodes[0].retransmits = 100000, DOCTOR_WARNING, "100000 segments", "ip -s link");
    WITH(nodes[0].mtu = 1500, DOCTOR_WARNING, "1500 bytes to node b, 9000 to node c", "one MTU");
    WITH(nodes[0].rtt_us = 5000, DOCTOR_WARNING, "2500 us, and transport.latency_us is 30",
         "pingpong");
    WITH(nodes[0].bandwidth = 118000000, DOCTOR_WARNING,
         "0.118 GB/s at most, and transport.bandwidth is 1G", "ethtool");
    WITH(bandwidth = "16G", DOCTOR_WARNING, "transport.bandwidth is 16G", "commd-perf sendrecv");
    WITH(bandwidth = "2T", DOCTOR_WARNING, "transport.bandwidth is 2T", "commd-perf sendrecv");
    WITH(bandwidth = "11000000000", DOCTOR_OK, "", "");
    WITH(bandwidth = "1X", DOCTOR_OK, "", "");
    f = well();
    f.nodes[0].bandwidth = 118000000;
    f.nodes[0].sent = 160; /* a greeting tells no rate */
    only(&f, DOCTOR_OK, "", "");
    doctor_judge(&f, &all);
    for (unsigned i = 0; i < all.n; i++)
        assert_null(strstr(all.at[i].finding, "GB/s so far"));
    doctor_findings_free(&all);
    WITH(nodes[1].bandwidth = 5, DOCTOR_OK, "", ""); /* nothing was sent that could be faster */
    WITH(nodes[0].encryption = LINK_CLEAR_LOOPBACK, DOCTOR_OK, "", "");
    WITH(nodes[0].encryption = LINK_CLEAR_OLD, DOCTOR_WARNING, "in the clear, for 90 s",
         "upgrade commd on node b");
    WITH(nodes[0].encryption = LINK_CLEAR_UCX, DOCTOR_WARNING, "RDMA or UCX, trusted network",
         "transport.fabric: tcp");
    WITH(nodes[0].encryption = LINK_CLEAR_OFF, DOCTOR_WARNING, "can read and forge",
         "transport.encryption: auto in the configuration of node b");
    WITH(encryption = "off"; nodes[0].encryption = LINK_CLEAR_OFF, DOCTOR_WARNING, "can read and",
                             "transport.encryption: auto in the configuration of this node");
    WITH(nodes[0].apart_s = 12, DOCTOR_ERROR, "no connection for 12 s", "transport.port_range");
    WITH(nodes[0].state = "draining", DOCTOR_ERROR, "it is draining", "commctl drain --undo there");
    f = well();
    nodes[0].mtu = nodes[1].mtu = 1400;
    f.nnodes = 1;
    only(&f, DOCTOR_WARNING, "1400 bytes at most", "tunnels");
}

static void nodes_that_are_down(void **state)
{
    static const struct {
        int error;
        const char *text, *remedy;
    } cases[] = {{0, "it is down: silent for 3 s", "its port answers"},
                 {ECONNREFUSED, "nobody listens at 10.0.0.2:18400", "systemctl start commd"},
                 {ETIMEDOUT, "10.0.0.2:18400 does not answer", "firewall"},
                 {EHOSTUNREACH, "No route to host", "route"}};

    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        struct doctor_facts f = well();

        nodes[0].state = "down";
        nodes[0].last_error = "silent for 3 s";
        nodes[0].connect_error = cases[i].error;
        nodes[0].mtu = DOCTOR_UNKNOWN;
        only(&f, DOCTOR_ERROR, cases[i].text, cases[i].remedy);
        nodes[0].last_error = ""; /* it connects to us, and is refused here or refuses there */
        if (!cases[i].error)
            only(&f, DOCTOR_ERROR, "nothing is known", "here and there");
    }
}

/* Only one that was asked for and could not be started is worth a word. */
static void a_gpu_service_that_is_down(void **state)
{
    static const struct {
        const char *gpu, *text;
        bool bad;
    } cases[] = {
        {"", "", false}, /* an older commd */
        {"up", "2 GPUs", false},
        {"down", "nobody has asked for it yet", false},
        {"down", "killed by signal 9", true},
    };
    struct doctor_facts f = well();

    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        struct doctor_findings all;
        unsigned bad = 0;

        f.gpu = cases[i].gpu;
        f.gpu_text = cases[i].text;
        if (cases[i].bad) {
            only(&f, DOCTOR_WARNING, "killed by signal 9", "gpu.enabled: no");
            continue;
        }
        doctor_judge(&f, &all);
        for (unsigned j = 0; j < all.n; j++)
            bad += all.at[j].level != DOCTOR_OK;
        assert_int_equal(bad, 0);
        doctor_findings_free(&all);
    }
}

/* The facts of the machine on which the test runs are plausible, and nodes are reached or not. */
static void facts_of_this_machine(void **state)
{
    struct doctor_node here[] = {{.name = "x", .address = "127.0.0.1:1", .state = "down"},
                                 {.name = "y", .address = "nonsense", .state = "down"},
                                 {.name = "z", .address = "", .state = "down"},
                                 {.name = "u", .address = "127.0.0.1:1", .state = "up"}};
    struct doctor_facts f = {.nodes = here, .nnodes = ARRAY_LEN(here)};

    doctor_look_here(-1, 20, &f);
    assert_true(f.open_files > 0 && f.memory > 0 && f.available > 0 && f.cpus > 0);
    assert_in_range(f.stolen_pct + 1, 0, 101);
    doctor_look_at_nodes(&f, 500);
    assert_int_equal(here[0].connect_error, ECONNREFUSED);
    assert_int_equal(here[1].connect_error, DOCTOR_UNKNOWN);
    assert_int_equal(here[2].connect_error, DOCTOR_UNKNOWN);
    assert_int_equal(here[3].connect_error, DOCTOR_UNKNOWN); /* it has a link */
    assert_true(here[3].mtu >= 1280);
    doctor_look_here(1 << 30, 1, &f); /* there is no such process */
    assert_int_equal(f.open_files, DOCTOR_UNKNOWN);
}

static void why_it_does_not_start(void **state)
{
    struct doctor_facts f = well();
    struct doctor_findings all;

    f.unasked = "no commd is listening";
    f.config_unwell = "/etc/commd/cluster.key: cannot open the cluster key";
    doctor_judge(&f, &all);
    assert_true(all.n >= 2);
    assert_int_equal(all.at[1].level, DOCTOR_ERROR);
    assert_string_equal(all.at[1].check, "configuration");
    assert_string_equal(all.at[1].finding, f.config_unwell);
    assert_non_null(strstr(all.at[1].remedy, "systemctl restart commd"));
    doctor_findings_free(&all);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_that_is_well),   cmocka_unit_test(one_thing_is_wrong),
        cmocka_unit_test(nodes_that_are_down),   cmocka_unit_test(a_gpu_service_that_is_down),
        cmocka_unit_test(facts_of_this_machine), cmocka_unit_test(why_it_does_not_start),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
