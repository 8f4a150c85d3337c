# The examples: built by make check, which runs them on real daemons (test_examples.py). They see
# client/include alone, as a program outside of this tree sees an installed one.
examples = client/examples/ring client/examples/data_parallel client/examples/pipeline \
	client/examples/async_params
check_PROGRAMS += $(examples)
examples_cppflags = -I$(top_srcdir)/client/include -D_GNU_SOURCE
client_examples_ring_SOURCES = client/examples/ring.c client/examples/example.h
client_examples_ring_CPPFLAGS = $(examples_cppflags)
client_examples_ring_LDADD = client/lib/libcommd.la
client_examples_data_parallel_SOURCES = client/examples/data_parallel.c client/examples/example.h
client_examples_data_parallel_CPPFLAGS = $(examples_cppflags)
client_examples_data_parallel_LDADD = client/lib/libcommd.la
client_examples_pipeline_SOURCES = client/examples/pipeline.c client/examples/example.h
client_examples_pipeline_CPPFLAGS = $(examples_cppflags)
client_examples_pipeline_LDADD = client/lib/libcommd.la
client_examples_async_params_SOURCES = client/examples/async_params.c client/examples/example.h
client_examples_async_params_CPPFLAGS = $(examples_cppflags)
client_examples_async_params_LDADD = client/lib/libcommd.la
