package show

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/qemu"
)

// Doctor prints each fact, with its fix if it has one, and at the end whether `vnic run` can run guests in
// QEMU.
func Doctor(w io.Writer, rep *qemu.Report) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range rep.Facts {
		mark := string(f.State)
		switch {
		case f.State == assets.Good:
			mark = Green(w, mark)
		case f.State == assets.Worse:
			mark = Yellow(w, "note")
		case rep.CanFetch && strings.HasPrefix(f.Fix, "the first run fetches"):
			mark = Yellow(w, "to fetch")
		default:
			mark = Red(w, mark)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\n", f.Name, mark, agent.Plain(f.Value))
		if f.Fix != "" {
			// The line has as many escape codes as the one above, because tabwriter counts them as width.
			fmt.Fprintf(tw, "\t%s\t%s\n", Paint(w, "39", ""), agent.Plain(f.Fix))
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	var err error
	switch {
	case rep.Ready:
		_, err = fmt.Fprintf(w, "\nready: 'vnic run' has all it needs, and takes %d MB of memory while it runs\n",
			rep.MemoryBytes>>20)
	case rep.CanFetch && rep.DownloadBytes > 0:
		_, err = fmt.Fprintf(w,
			"\nready: the first 'vnic run' downloads %d MB and keeps %d MB in the cache; "+
				"it takes %d MB of memory while it runs\n",
			rep.DownloadBytes>>20, rep.DiskBytes>>20, rep.MemoryBytes>>20)
	default:
		_, err = fmt.Fprintln(w,
			"\nnot ready for guests in QEMU: each 'missing' above says what to do. 'vnic run --guest inproc' needs no QEMU.")
	}
	return err
}
