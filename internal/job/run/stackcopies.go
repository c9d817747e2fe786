package run

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/report"
	"vnic.dev/vnic/internal/transfer"
)

// StackCopies is what a guest's processors read and write in host memory for its stack in mode copy. Bytes is computed
// from the payload and the stack's copies of a byte (stacks), and not counted. It is part of no Link.
type StackCopies struct {
	Guest string `json:"guest"`
	// linux: the guest's kernel; vnic: our driver and stack
	Stack string `json:"stack" jsonschema:"enum=linux,enum=vnic"`
	// bytes of memory read and written for each byte of payload that the guest sends or receives
	PerByte int `json:"per_byte"`
	// bytes read and written for all payload of the guest's NICs with this stack, without retransmissions; caches keep a
	// part of them
	Bytes uint64 `json:"bytes"`
}

const (
	StackLinux = "linux" // the kernel's, with gVNIC
	StackVNIC  = "vnic"  // our driver and stack, with virtio-net
)

// stacks has the stacks' names in tables, and how many bytes of memory the processors read and write for a
// byte of payload. Linux copies a byte once, between the program's memory and the socket's; vnic's stack
// twice, also to or from the NIC's buffers.
var stacks = map[string]struct {
	owner   string
	perByte int
}{StackLinux: {"Linux's", 2 * 1}, StackVNIC: {"ours", 2 * 2}}

// stackCopies returns, in mode copy, the copies by the stacks of each guest on this host. A guest has both stacks if
// its NICs that transfer are of both models. runs has the streams' results; a nil one counts nothing.
func (r *runner) stackCopies(mode string, runs []*Run) (list []StackCopies) {
	if mode != transfer.Copy {
		return nil
	}
	for i, s := range r.streams {
		if runs[i] == nil {
			continue
		}
		for _, here := range s.places {
			if r.opt.away(here.guest) {
				continue
			}
			g := &r.desc.Guests[here.guest]
			c := StackCopies{Guest: g.Name, Stack: StackVNIC}
			if m, _ := lab.LookupModel(g.NICs[here.nic].Model); m.Kernel {
				c.Stack = StackLinux
			}
			c.PerByte = stacks[c.Stack].perByte
			n := slices.IndexFunc(list, func(x StackCopies) bool { return x.Guest == c.Guest && x.Stack == c.Stack })
			if n < 0 {
				n = len(list)
				list = append(list, c)
			}
			list[n].Bytes += runs[i].Bytes * uint64(c.PerByte)
		}
	}
	slices.SortStableFunc(list, func(a, b StackCopies) int { return cmp.Compare(a.Guest, b.Guest) })
	return list
}

func (r *Run) stackLines(w io.Writer) {
	for _, c := range r.StackCopies {
		fmt.Fprintf(w, "copies of %s's processors, not counted and in no link, by its stack (%s): %d bytes of memory a byte of "+
			"payload, %s\n", c.Guest, stacks[c.Stack].owner, c.PerByte, report.Number(c.Bytes))
	}
}
