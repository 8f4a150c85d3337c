/* admin.c - the order in which questions of commctl are answered. answers.c makes the answers.
 *
 * Answers can be long, and anybody may ask. So one answer is made at a time, ADMIN_STEP_US of it
 * in a turn, by a scan that finds its place again; the others wait as questions, which are small.
 * Users take turns: each question has a number, one more than its user's last one that waits, and
 * the lowest is next. A client has one question at a time (listener_pause()). */
#include <stdio.h>
#include <sys/queue.h>

#include "daemon/admin/answers.h"
#include "daemon/daemon.h"
#include "daemon/process/clock.h"

enum { ADMIN_STEP_US = 1000 };

struct admin_question {
    TAILQ_ENTRY(admin_question) entry;
    unsigned slot;
    uint32_t uid, payer; /* of the client that asks; turns go by payer */
    uint64_t number;
    uint64_t since;
    char verb[sizeof(((struct msg_admin *)0)->verb)];
};

TAILQ_HEAD(question_list, admin_question);

struct admin {
    struct question_list waiting; /* owned */
    struct admin_question *now;   /* owned: being answered, or NULL */
    answer_fill_fn *fill;         /* for the verb of now; NULL: no such verb */
    struct answer answer;         /* to the question now */
    uint64_t number;              /* of the question that was begun last */
    struct event *more;           /* owned: active when work remains after a turn */
};

static void question_free(struct admin *admin, struct admin_question *question)
{
    if (question == admin->now) {
        table_fini(&admin->answer.table);
        tenants_fini(&admin->answer);
        admin->now = NULL;
    } else {
        TAILQ_REMOVE(&admin->waiting, question, entry);
    }
    free(question);
}

static void finish_answer(struct daemon *d)
{
    struct admin *admin = d->admin;
    struct answer *a = &admin->answer;
    unsigned slot = admin->now->slot;

    if (!admin->fill)
        answer_unknown(a, admin->now->verb);
    if (a->table.error) {
        int error = a->table.error;

        table_fini(&a->table);
        answer_unwell(a, "the answer cannot be made: %s", strerror(-error));
    }
    answer_send(d, slot, !a->unwell[0], a->table.t.ncolumns ? &a->table : NULL, a->unwell,
                a->total);
    question_free(admin, admin->now);
    listener_resume(d->listener, slot);
}

static void begin_answer(struct daemon *d)
{
    struct admin *admin = d->admin;
    struct admin_question *question, *next = TAILQ_FIRST(&admin->waiting);

    assert(!admin->now && next);
    TAILQ_FOREACH(question, &admin->waiting, entry)
        if (question->number < next->number)
            next = question;
    TAILQ_REMOVE(&admin->waiting, next, entry);
    admin->now = next;
    admin->number = next->number;
    admin->answer = (struct answer){.d = d, .uid = next->uid, .since = next->since};
    admin->fill = answer_fill(next->verb);
}

void admin_turn(struct daemon *d)
{
    static const struct timeval at_once;
    struct admin *admin = d->admin;
    uint64_t now = clock_us(), until = now + ADMIN_STEP_US;

    while ((admin->now || !TAILQ_EMPTY(&admin->waiting)) && now < until) {
        if (!admin->now)
            begin_answer(d);
        admin->answer.until_us = until;
        if (!admin->fill || admin->fill(&admin->answer))
            finish_answer(d);
        now = clock_us();
    }
    if (admin->now || !TAILQ_EMPTY(&admin->waiting))
        event_add(admin->more, &at_once);
}

void admin_ask(struct daemon *d, unsigned slot, const struct msg_admin *question)
{
    struct admin_question *new = calloc(1, sizeof(*new)), *other;
    struct admin *admin = d->admin;
    struct listener_client client;

    if (!new || !listener_client(d->listener, slot, &client)) {
        free(new); /* no memory: the client gets no answer, as from a very busy commd */
        return;
    }
    new->slot = slot;
    new->uid = client.uid;
    new->payer = client.payer;
    new->since = question->since;
    new->number = admin->number;
    snprintf(new->verb, sizeof(new->verb), "%s", question->verb);
    if (admin->now && admin->now->payer == new->payer)
        new->number = MAX(new->number, admin->now->number + 1);
    TAILQ_FOREACH(other, &admin->waiting, entry)
        if (other->payer == new->payer)
            new->number = MAX(new->number, other->number + 1);
    TAILQ_INSERT_TAIL(&admin->waiting, new, entry);
    listener_pause(d->listener, slot);
}

void admin_drop(struct daemon *d, unsigned slot)
{
    struct admin *admin = d->admin;
    struct admin_question *question;

    if (admin->now && admin->now->slot == slot)
        question_free(admin, admin->now);
    TAILQ_FOREACH(question, &admin->waiting, entry)
        if (question->slot == slot)
            return question_free(admin, question);
}

static void on_more(evutil_socket_t fd, short what, void *arg)
{
    /* admin_turn() does the work */
}

int admin_init(struct daemon *d)
{
    d->admin = calloc(1, sizeof(*d->admin));
    if (!d->admin)
        return -ENOMEM;
    TAILQ_INIT(&d->admin->waiting);
    d->admin->more = evtimer_new(d->base, on_more, d);
    return d->admin->more ? 0 : -ENOMEM;
}

void admin_fini(struct daemon *d)
{
    struct admin *admin = d->admin;

    if (!admin)
        return;
    if (admin->now)
        question_free(admin, admin->now);
    while (!TAILQ_EMPTY(&admin->waiting))
        question_free(admin, TAILQ_FIRST(&admin->waiting));
    if (admin->more)
        event_free(admin->more);
    free(admin);
    d->admin = NULL;
}
