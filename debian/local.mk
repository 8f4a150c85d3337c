# debian/: packages for Debian; dpkg-buildpackage reads it, make only puts it into the tarball.
EXTRA_DIST += debian/changelog debian/commd.docs debian/commd-gpu.install debian/commd-gpu.postrm \
	debian/commd-gpu.prerm debian/commd.install debian/commd.lintian-overrides \
	debian/commd.postinst debian/commd.postrm debian/commd.preinst debian/commd.prerm debian/control \
	debian/copyright \
	debian/libcommd-dev.install debian/libcommd0.install debian/libcommd0.symbols \
	debian/not-installed debian/python3-commd.install debian/rules debian/source/format
