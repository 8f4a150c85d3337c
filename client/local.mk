# libcommd: depends on nothing but libc; what it needs of shm/ and protobuf-c is inside.
lib_LTLIBRARIES += client/libcommd.la
# (libcommd-client.la: the same objects for tests that look inside.)
noinst_LTLIBRARIES += libcommd-client.la
libcommd_client_la_SOURCES = client/alive.c client/api.c client/arena.c client/arena.h client/async.c client/autostart.c client/check.c client/coll.c client/coll.h \
	client/coll_blocks.c client/control.c client/direct.c client/direct.h client/direct_work.c client/error.c client/group.c client/lists.c \
	client/p2p.c client/p2p.h client/p2p_api.c client/p2p_match.c client/p2p_out.c \
	client/p2p_wait.c client/peer_arena.c client/run.c client/split.c client/who.c client/internal.h client/commd.h
libcommd_client_la_CFLAGS = $(AM_CFLAGS) -fvisibility=hidden
client_libcommd_la_SOURCES =
client_libcommd_la_LIBADD = libcommd-client.la libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_STATIC)
client_libcommd_la_LDFLAGS = $(AM_LDFLAGS) -version-info 0:0:0 -no-undefined \
	-Wl,--version-script=$(top_srcdir)/client/libcommd.map
client_libcommd_la_DEPENDENCIES = $(top_srcdir)/client/libcommd.map libcommd-client.la \
	libcommd-proto.la libcommd-shm.la
man3_pages = client/commd.3 client/commd_all_reduce.3 client/commd_alloc.3 client/commd_connect.3 \
	client/commd_group_join.3 client/commd_run.3 client/commd_send.3
dist_man_MANS += $(man3_pages)
# `man commd_barrier`: a page under the name of each function that a page is about.
man3_names = cd $(top_srcdir) && for page in $(man3_pages); do \
	sed -n "/^\.Sh NAME/,/^\.Nd/s,^\.Nm \(commd_[a-z_]*\).*,\1 `basename $$page`,p" $$page; done
install-data-hook:
	@dir=`cd '$(DESTDIR)$(man3dir)' && pwd` && ($(man3_names)) | while read name page; do \
	    test "$$name.3" = "$$page" || echo ".so man3/$$page" >"$$dir/$$name.3"; done
uninstall-hook:
	@$(man3_names) | while read name page; do rm -f "$(DESTDIR)$(man3dir)/$$name.3"; done
EXTRA_DIST += client/libcommd.map
commdincludedir = $(includedir)/commd
commdinclude_HEADERS = client/commd.h
pkgconfigdir = $(libdir)/pkgconfig
pkgconfig_DATA = client/commd.pc

# The programs.
bin_PROGRAMS += client/commctl
dist_man_MANS += client/commctl.8
client_commctl_SOURCES = client/commctl.c client/commctl.h client/commctl_ask.c \
	client/commctl_print.c client/commctl_tuning.c
client_commctl_CFLAGS = $(AM_CFLAGS) $(SMARTCOLS_CFLAGS)
client_commctl_LDADD = libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS) $(SMARTCOLS_LIBS)

bin_PROGRAMS += client/commd-perf
dist_man_MANS += client/commd-perf.1
client_commd_perf_SOURCES = client/commd-perf.c client/commd_perf.h client/commd_perf_coll.c \
	client/commd_perf_data.c client/commd_perf_launch.c client/commd_perf_loop.c \
	client/commd_perf_options.c client/commd_perf_report.c client/commd_perf_run.c \
	client/commd_perf_stats.c client/commd_perf_turns.c
client_commd_perf_LDADD = client/libcommd.la

# The examples: built by make check, which runs them on real daemons (test_examples.py). They include
# <commd/commd.h>, as a program outside of this tree does.
examples = client/examples/ring client/examples/data_parallel client/examples/pipeline \
	client/examples/async_params
check_PROGRAMS += $(examples)
BUILT_SOURCES += client/examples/include/commd/commd.h
CLEANFILES += client/examples/include/commd/commd.h
client/examples/include/commd/commd.h: client/commd.h
	$(AM_V_GEN)$(MKDIR_P) $(@D) && cp $(top_srcdir)/client/commd.h $@
examples_cppflags = -I$(builddir)/client/examples/include -D_GNU_SOURCE
client_examples_ring_SOURCES = client/examples/ring.c client/examples/example.h
client_examples_ring_CPPFLAGS = $(examples_cppflags)
client_examples_ring_LDADD = client/libcommd.la
client_examples_data_parallel_SOURCES = client/examples/data_parallel.c client/examples/example.h
client_examples_data_parallel_CPPFLAGS = $(examples_cppflags)
client_examples_data_parallel_LDADD = client/libcommd.la
client_examples_pipeline_SOURCES = client/examples/pipeline.c client/examples/example.h
client_examples_pipeline_CPPFLAGS = $(examples_cppflags)
client_examples_pipeline_LDADD = client/libcommd.la
client_examples_async_params_SOURCES = client/examples/async_params.c client/examples/example.h
client_examples_async_params_CPPFLAGS = $(examples_cppflags)
client_examples_async_params_LDADD = client/libcommd.la

# The Python package: built by pip; its torch backend against the torch that is installed.
EXTRA_DIST += \
	client/python/MANIFEST.in \
	client/python/commd/__init__.py \
	client/python/commd/__init__.pyi \
	client/python/commd/_autoload.py \
	client/python/commd/_core.c \
	client/python/commd/_core.h \
	client/python/commd/_core_error.c \
	client/python/commd/_core_memory.c \
	client/python/commd/_core_op.c \
	client/python/commd/_core_work.c \
	client/python/commd/csrc/all.cpp \
	client/python/commd/csrc/backend.cpp \
	client/python/commd/csrc/backend.h \
	client/python/commd/csrc/bind.cpp \
	client/python/commd/csrc/callbacks.cpp \
	client/python/commd/csrc/callbacks.h \
	client/python/commd/csrc/group.cpp \
	client/python/commd/csrc/group.h \
	client/python/commd/csrc/move.cpp \
	client/python/commd/csrc/ops.cpp \
	client/python/commd/csrc/ops.h \
	client/python/commd/csrc/p2p.cpp \
	client/python/commd/csrc/plan.cpp \
	client/python/commd/csrc/plan.h \
	client/python/commd/csrc/python.h \
	client/python/commd/csrc/reduce.cpp \
	client/python/commd/csrc/sparse.cpp \
	client/python/commd/csrc/tensors.cpp \
	client/python/commd/csrc/tensors.h \
	client/python/commd/csrc/work.cpp \
	client/python/commd/csrc/work.h \
	client/python/commd/dtypes.py \
	client/python/commd/errors.py \
	client/python/commd/group.py \
	client/python/commd/py.typed \
	client/python/commd/torch.py \
	client/python/examples/digits_ddp.py \
	client/python/pyproject.toml \
	client/python/setup.py
