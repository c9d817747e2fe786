package assets

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// models are the device models of a NIC, and what guests need for each: of QEMU a version, of their
// kernel a module.
var models = []struct{ nic, oldest, module string }{
	{"virtio", MinQEMU, "uio_pci_generic"},
	{"gve", MinVFIOUser, "gve"},
}

// nics says which NICs a guest can have. A cached QEMU that is newer serves where that of a run
// which does not say is too old.
func (s *Survey) nics(have resolved) {
	for _, p := range models {
		version := s.QEMU.Version
		if cached := have[roleQEMU]; older(version, p.oldest) && cached != nil {
			version = upstream(cached.Version)
		}
		name := "nic " + p.nic
		switch module := s.Kernel.module(p.module); {
		case version == "" || s.Kernel.Image == "":
			s.found(name, Worse, "QEMU or a guest kernel is missing", "the first run fetches both; see above")
		case older(version, p.oldest):
			s.found(name, Worse, fmt.Sprintf("QEMU %s is older than %s", version, p.oldest),
				"the first run with --nic "+p.nic+" fetches a newer one")
		case !module:
			s.found(name, Lacking, fmt.Sprintf("kernel %s has no module %s", s.Kernel.Version, p.module),
				"give another kernel, or none and one is fetched")
		default:
			s.found(name, Good, fmt.Sprintf("QEMU %s, kernel %s", version, s.Kernel.Version), "")
		}
	}
}

// module says whether a kernel comes with a module.
func (k Kernel) module(name string) bool {
	found := false
	_ = filepath.WalkDir(k.Modules, func(path string, e fs.DirEntry, err error) error {
		if err != nil || found {
			return fs.SkipAll
		}
		base, rest, _ := strings.Cut(e.Name(), ".ko")
		found = strings.ReplaceAll(base, "-", "_") == name && e.Type().IsRegular() &&
			slices.Contains([]string{"", ".xz", ".gz", ".zst"}, rest)
		return nil
	})
	return found
}
