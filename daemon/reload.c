/* reload.c - reads the configuration again while commd runs, for SIGHUP or commctl reload.
 *
 * A file that is wrong changes nothing. If it is right, all settings that can change in a running
 * commd take their new values. The others keep their values until commd is started again, and are
 * named. The keys of the cluster, or this node's certificate, are read again, too. If any file is
 * wrong, all are refused.
 *
 * It is called between two steps of the core, or from an action of the core: core_reconfigure()
 * decides nothing by itself. */
#include "daemon/daemon.h"

#include <stdarg.h>
#include <stdio.h>

#include "daemon/link/engine_spawn.h"
#include "daemon/link/tls.h"
#include "daemon/process/log.h"
#include "daemon/process/notify.h"
#include "shm/proto/cause_text.h"

/* Writes all lines of @error into the log, and the first one into @ret. */
static void tell_error(const char *error, char *ret, size_t cap)
{
    snprintf(ret, cap, "%.*s", (int)strcspn(error, "\n"), error);
    while (*error) {
        size_t n = strcspn(error, "\n");

        log_error("%.*s", (int)n, error);
        error += n + (error[n] == '\n');
    }
}

struct setting_names { /* of settings */
    char text[MSG_TEXT_MAX / 2];
};

const struct conf *daemon_served(const struct daemon *d)
{
    struct core_status status;

    core_status(d->core, &status);
    return d->served && status.engine_waits ? d->served : d->conf;
}

int daemon_check_change(const struct daemon *d, const struct conf *conf, char **ret_error)
{
    int r = conf_check_change(d->conf, conf, ret_error);
    struct core_status status;

    core_status(d->core, &status);
    if (!r && status.engine_waits && strcmp(d->conf->encryption, conf->encryption))
        r = conf_check_change(d->served, conf, ret_error);
    return r;
}

/* NULL: the file is wrong, and the log says why. @ret_keys: names of settings that keep their
 * values. @ret_waits: of those that the engine or commd-gpu takes when it is started anew. */
static struct conf *load_changed(struct daemon *d, struct setting_names *ret_keys,
                                 struct setting_names *ret_waits, char *ret_why, size_t why_cap)
{
    _cleanup_(freep) char *error = NULL;
    struct conf *conf = NULL;

    if (conf_load(d->config_file, NULL, 0, &conf, &error) || daemon_check_change(d, conf, &error)) {
        tell_error(error ? error : "out of memory", ret_why, why_cap);
        log_error("the new configuration is wrong -> keeping the old one");
        return conf_free(conf);
    }
    conf_not_reloadable(d->conf, conf, ret_keys->text, sizeof(ret_keys->text));
    if (conf_keep(conf, d->conf) == 0) {
        conf_idle_changes(d->conf, conf, ret_waits->text, sizeof(ret_waits->text));
        return conf;
    }
    tell_error("out of memory", ret_why, why_cap);
    return conf_free(conf);
}

/* By what this node proves itself from now on. */
struct proofs {
    struct conf_keys keys;
    struct tls_identity *identity; /* owned */
};

static void proofs_fini(struct proofs *proofs)
{
    explicit_bzero(&proofs->keys, sizeof(proofs->keys));
    tls_identity_free(steal_ptr(proofs->identity));
}

static bool has_proofs(const struct daemon *d)
{
    return d->peers && !d->insecure;
}

/* False: the file of the keys, or one of the certificate, is wrong, and the log says why. */
static bool load_changed_proofs(const struct daemon *d, const struct conf *conf,
                                struct proofs *ret_proofs, char *ret_why, size_t why_cap)
{
    _cleanup_(freep) char *error = NULL;

    if (!has_proofs(d) ||
        daemon_load_proofs(conf, &ret_proofs->keys, &ret_proofs->identity, &error) == 0)
        return true;
    tell_error(error ? error : "out of memory", ret_why, why_cap);
    log_error("the cluster key%s cannot be used -> keeping the old one, and the old configuration",
              conf_proves_by_certificate(conf) ? ", or this node's certificate," : "");
    return false;
}

bool daemon_check_proofs(const struct daemon *d, const struct conf *conf, char *ret_text,
                         size_t cap)
{
    _cleanup_(freep) char *error = NULL;
    struct proofs proofs = {0};
    int64_t now = (int64_t)time(NULL);
    char due[MSG_TEXT_MAX];
    bool was_due, is_due;

    *ret_text = '\0';
    if (!has_proofs(d))
        return true;
    was_due = peer_links_expiry(d->peers, due, sizeof(due));
    if (daemon_load_proofs(conf, &proofs.keys, &proofs.identity, &error)) {
        snprintf(ret_text, cap, TEXT_PROOFS_WRONG "%s", error ? error : "out of memory");
    } else if (proofs.identity) {
        is_due = tls_identity_is_due(proofs.identity, now);
        if (was_due && !is_due)
            snprintf(ret_text, cap, "%s " TEXT_PROOFS_NEWER, conf->certificate);
        else if (is_due && !was_due)
            tls_identity_say_end(proofs.identity, now, ret_text, cap);
        else if (tls_identity_list_is_old(proofs.identity, now))
            snprintf(ret_text, cap, "%s " TEXT_LIST_OLD, conf->crl);
    }
    proofs_fini(&proofs);
    return !*ret_text;
}

static void take_proofs(struct daemon *d, struct proofs *proofs)
{
    struct peer_links_keys names;

    if (peer_links_set_keys(d->peers, &proofs->keys, steal_ptr(proofs->identity))) {
        log_error("out of memory -> keeping the old key and certificate");
        return;
    }
    peer_links_keys(d->peers, d->conf->self, &names);
    log_info("reload -> connections to other nodes are made by %s%s%s%s",
             strcmp(names.key, TLS_CERTIFICATE_NAME) ? "key " : "", names.key,
             *names.other ? ", and accepted by key " : "", names.other);
}

/* What runs is replaced by what is started now, as soon as that is possible: core_renew.c. */
static void take_programs(struct daemon *d)
{
    struct program program;

    if (d->engine) {
        program_engine(d->conf, d->device, &program);
        engine_link_set_program(d->engine, &program);
    }
    if (d->gpu) {
        program_gpu(d->conf, &program);
        engine_link_set_program(d->gpu, &program);
    }
}

static void take_conf(struct daemon *d, struct conf *conf)
{
    struct core_config config;
    struct core_status status;
    char waits[2];

    core_status(d->core, &status);
    if (!status.engine_waits && !status.gpu_waits)
        d->served = conf_free(d->served); /* they have been started anew since */
    if (d->served)
        conf_free(d->conf);
    else
        d->served = d->conf;
    d->conf = conf;
    conf_idle_changes(d->served, conf, waits, sizeof(waits));
    if (!waits[0])
        d->served = conf_free(d->served);
    daemon_core_config(d, &config); /* what it says about GPUs was decided at the start */
    core_reconfigure(d->core, &config);
    take_programs(d);
    listener_set_limits(d->listener, conf->max_clients, conf->max_clients_per_user);
    if (d->peers)
        peer_links_set_timeout(d->peers, conf->node_timeout_ms);
    log_set_level(conf->log_level);
    payers_read(d);
}

static enum reload reload(struct daemon *d, char *ret_text, size_t cap)
{
    struct proofs proofs = {0};
    struct setting_names kept, waits;
    struct conf *conf = load_changed(d, &kept, &waits, ret_text, cap);

    if (conf && !load_changed_proofs(d, conf, &proofs, ret_text, cap))
        conf = conf_free(conf);
    d->refused_s = conf ? 0 : time(NULL);
    if (!conf) {
        daemon_note(d, EVENT_CONFIG, "the new configuration was refused; the log says why");
        return RELOAD_REFUSED;
    }
    take_conf(d, conf);
    if (has_proofs(d))
        take_proofs(d, &proofs);
    proofs_fini(&proofs);
    snprintf(ret_text, cap, "configuration %s reloaded%s%s%s%s%s%s", conf->file,
             *kept.text ? ", but for " : "", kept.text, *kept.text ? ": that needs a restart" : "",
             *waits.text ? "; " : "", waits.text,
             *waits.text ? ": as soon as the next engine, or commd-gpu, can take over" : "");
    log_write(*kept.text ? CONF_LOG_WARN : CONF_LOG_INFO, "reload -> %s", ret_text);
    daemon_note(d, EVENT_CONFIG, "%s", ret_text);
    return *kept.text ? RELOAD_IN_PART : RELOAD_DONE;
}

enum reload daemon_reload(struct daemon *d, char *ret_text, size_t cap)
{
    enum reload result;
    struct timespec now;

    if (!d->config_file[0]) {
        snprintf(ret_text, cap, "nothing to reload: this commd has no configuration file");
        log_info("reload -> %s", ret_text);
        return RELOAD_REFUSED;
    }
    /* To the microsecond: systemd compares it with the time at which it asked. */
    clock_gettime(CLOCK_MONOTONIC, &now);
    notify_send("RELOADING=1\nMONOTONIC_USEC=%lld",
                (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000);
    result = reload(d, ret_text, cap);
    notify_send("READY=1");
    return result;
}
