package main

import (
	"os"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/memavail"
)

// compacting returns a function that calls test while Linux compacts memory again and again (mm/compaction.c).
func compacting(test func(t *T)) func(t *T) {
	compact := func() error { return os.WriteFile("/proc/sys/vm/compact_memory", []byte("1"), 0) }
	return func(t *T) { t.beside(compact, func() { test(t) }) }
}

func shortOfRAM(test func(t *T)) func(t *T) {
	return func(t *T) {
		available, where := memavail.Available("/")
		t.require(where != "", "how much memory is available is not known")
		size := int(available-available/8-uint64(2*moveSize)) &^ (page - 1)
		take := func() error {
			b, err := mapAnonymous(size, false)
			if err != nil {
				return err
			}
			for i := 0; i < len(b); i += page {
				b[i] = 1
			}
			return unix.Munmap(b)
		}
		t.beside(take, func() { test(t) })
	}
}
