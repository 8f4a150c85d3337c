# commctl, which asks the local daemon.
bin_PROGRAMS += client/ctl/commctl
dist_man_MANS += client/ctl/commctl.8
client_ctl_commctl_SOURCES = client/ctl/commctl.c client/ctl/commctl.h client/ctl/cells.h \
	client/ctl/commctl_ask.c client/ctl/commctl_change.c client/ctl/commctl_events.c \
	client/ctl/commctl_made.c client/ctl/commctl_options.c client/ctl/commctl_print.c \
	client/ctl/commctl_ranks.c client/ctl/commctl_trace.c \
	client/ctl/commctl_wait.c client/ctl/commctl_watch.c \
	client/ctl/chain.c client/ctl/chain.h client/ctl/chain_end.c \
	client/ctl/diagnose.c client/ctl/diagnose.h client/ctl/finding.c client/ctl/finding.h \
	client/ctl/gone.c client/ctl/gpu_chain.c client/ctl/hampered.c \
	client/ctl/joining.c client/ctl/killed.c client/ctl/lost.c client/ctl/links.c \
	client/ctl/pace.c client/ctl/pending.c \
	client/ctl/seats.c client/ctl/seats.h client/ctl/timeline.c client/ctl/timeline.h \
	client/ctl/stack.c client/ctl/stack.h client/ctl/unlike.c client/ctl/unmatched.c \
	client/ctl/words.c client/ctl/words.h \
	client/ctl/commctl_doctor.c client/ctl/doctor.c client/ctl/doctor.h client/ctl/doctor_facts.c
client_ctl_commctl_CFLAGS = $(AM_CFLAGS) $(SMARTCOLS_CFLAGS)
client_ctl_commctl_LDADD = libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS) $(SMARTCOLS_LIBS)
bashcompletiondir = $(datadir)/bash-completion/completions
dist_bashcompletion_DATA = client/ctl/completion/commctl
zshcompletiondir = $(datadir)/zsh/site-functions
dist_zshcompletion_DATA = client/ctl/completion/_commctl
