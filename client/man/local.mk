# client/man/: the C API. A page under the name of each function that it is about:
# `man commd_barrier`.
man3_pages = client/man/commd.3 client/man/commd_all_reduce.3 client/man/commd_alloc.3 \
	client/man/commd_connect.3 client/man/commd_group_join.3 client/man/commd_group_recover.3 \
	client/man/commd_run.3 client/man/commd_send.3
dist_man_MANS += $(man3_pages)
man3_names = cd $(top_srcdir) && for page in $(man3_pages); do \
	sed -n "/^\.Sh NAME/,/^\.Nd/s,^\.Nm \(commd_[a-z_]*\).*,\1 `basename $$page`,p" $$page; done
install-data-hook:
	@dir=`cd '$(DESTDIR)$(man3dir)' && pwd` && ($(man3_names)) | while read name page; do \
	    test "$$name.3" = "$$page" || echo ".so man3/$$page" >"$$dir/$$name.3"; done
uninstall-hook:
	@$(man3_names) | while read name page; do rm -f "$(DESTDIR)$(man3dir)/$$name.3"; done
