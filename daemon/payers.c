/* payers.c - which uid is charged for which, by limits.subuid_file. The file is read at the start
 * and at each reload, in a thread, because looking up names may take long. The start waits for it,
 * START_WAIT_MS at most; a running commd does not. What a user holds already stays charged as
 * before.
 */
#include "daemon/daemon.h"

#include "daemon/process/clock.h"
#include "daemon/process/log.h"
#include "daemon/process/subuid.h"

enum { START_WAIT_MS = 3000, LOOK_MS = 50 };

static void tell(const struct daemon *d, const struct subuid_report *report)
{
    const char *file = d->conf->subuid_file;
    bool needed = *file && conf_is_given(d->conf, "limits.subuid_file");

    if (report->error && (needed || report->error != -ENOENT))
        log_warn("limits.subuid_file: %s: %s -> each uid that it gave to somebody is a user", file,
                 report->error == -EPERM ? "everybody may write it" : strerror(-report->error));
    if (report->refused)
        log_warn("%s:%u: not NAME:FIRST:COUNT of uids that people may have -> ignoring it, and %u "
                 "more lines",
                 file, report->line, report->refused - 1);
    if (report->overlaps)
        log_warn("%s: %u lines name uids that another person has, too -> these lines are one user",
                 file, report->overlaps);
    if (report->strangers)
        log_info("%s: %u lines name nobody that is known here -> each is a user of its own", file,
                 report->strangers);
}

static bool take(struct daemon *d)
{
    struct core_config config;
    struct subuid_report report;
    struct payers *payers = NULL, *before = d->payers;

    if (!subuid_take(&d->subuid, &payers, &report))
        return false;
    tell(d, &report);
    d->payers = payers;
    if (d->core) {
        daemon_core_config(d, &config);
        core_reconfigure(d->core, &config);
    }
    if (d->listener)
        listener_set_payers(d->listener, payers);
    if (payers && payers->n)
        log_info("%s: %u ranges of uids are charged to whom they belong", d->conf->subuid_file,
                 payers->n);
    free(before);
    return true;
}

void payers_look(struct daemon *d)
{
    struct timeval tv = clock_timeval(LOOK_MS);

    if (d->subuid && !take(d))
        event_add(d->payers_timer, &tv);
}

void payers_read(struct daemon *d)
{
    d->subuid = subuid_free(d->subuid);
    if (!d->config_file[0]) /* there is one user */
        return;
    d->subuid = subuid_begin(d->conf->subuid_file, geteuid());
    if (!d->subuid)
        log_warn("no memory or thread to read %s -> what it said before holds",
                 d->conf->subuid_file);
    payers_look(d);
}

void payers_start(struct daemon *d)
{
    uint64_t until = clock_ms() + START_WAIT_MS;

    payers_read(d);
    while (d->subuid && clock_ms() < until) {
        usleep(1000);
        payers_look(d);
    }
    if (d->subuid)
        log_warn("%s: the system has not said in %d s whose the names are -> until then each uid "
                 "is a user",
                 d->conf->subuid_file, START_WAIT_MS / 1000);
}

void payers_fini(struct daemon *d)
{
    d->subuid = subuid_free(d->subuid);
    free(d->payers);
    d->payers = NULL;
}
