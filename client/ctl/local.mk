# commctl, which asks the local daemon.
bin_PROGRAMS += client/ctl/commctl
dist_man_MANS += client/ctl/commctl.8
client_ctl_commctl_SOURCES = client/ctl/commctl.c client/ctl/commctl.h client/ctl/commctl_ask.c \
	client/ctl/commctl_print.c
client_ctl_commctl_CFLAGS = $(AM_CFLAGS) $(SMARTCOLS_CFLAGS)
client_ctl_commctl_LDADD = libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS) $(SMARTCOLS_LIBS)
