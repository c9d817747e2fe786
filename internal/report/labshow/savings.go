package labshow

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/pcie"
)

// savings writes, for pairs of a NIC and a GPU, how many bytes in host memory each byte of payload saves without a copy
// ("nothing" if the path of the pair bounces), and the highest rates with and without copies, by the model of package
// pcie.
func (v *view) savings(b *strings.Builder) {
	var list []lab.Pairs
	for _, n := range v.nics {
		for _, g := range v.gpus {
			list = lab.AddPair(list, v.saving(n, g), n, g)
		}
	}
	b.WriteString("What devmem would save (model, not measured: payload alone, in packets of 256 bytes; no headers and rings,\n" +
		"no copies by processors, no rates of memory and sockets' links):\n")
	for _, x := range list {
		fmt.Fprintf(b, "%s\n    %s\n", x.Text, x.Some())
	}
	b.WriteByte('\n')
}

func (v *view) saving(nic, gpu string) string {
	if !v.path(nic, gpu).P2P() {
		return "nothing: payload would be bounced, and be in host memory as with copies"
	}
	host := v.tree.SocketOf(nic)
	direct := [2][]pcie.Load{v.tree.Write(nic, gpu), v.tree.Read(nic, gpu)}
	copies := [2][]pcie.Load{
		slices.Concat(v.tree.Write(nic, host), v.tree.Read(gpu, host)),
		slices.Concat(v.tree.Write(gpu, host), v.tree.Read(nic, host)),
	}
	text := fmt.Sprintf("%g bytes in host memory for each of payload", memory(copies[0])-memory(direct[0]))
	for i, word := range []string{"received", "sent"} {
		with, limit := v.most(direct[i], nic, gpu)
		without, other := v.most(copies[i], nic, gpu)
		if math.IsInf(with, 1) || math.IsInf(without, 1) {
			return text + "\n    not all links say how fast they are"
		}
		text += fmt.Sprintf("\n    %s: at most %.1f GB/s (%s), with copies %.1f GB/s (%s)", word, with/1e9, limit, without/1e9,
			other)
	}
	return text
}

func memory(loads []pcie.Load) (n float64) {
	for _, x := range loads {
		if x.Kind == pcie.Memory {
			n += x.PerByte
		}
	}
	return n
}

// most returns the highest rate of payload that PCIe links allow, in bytes a second, and whose link limits it. +Inf:
// the rate of a link in loads is unknown.
func (v *view) most(loads []pcie.Load, nic, gpu string) (rate float64, limit string) {
	links := make(map[string]pcie.Link)
	for _, n := range v.tree.Nodes() {
		links[n.Name] = n.Link
	}
	per := make(map[pcie.Edge]float64)
	for _, x := range loads {
		if x.Kind == pcie.Up || x.Kind == pcie.Down { // neither memory nor links between sockets
			per[x.Edge] += x.PerByte
		}
	}
	rate = math.Inf(1)
	slowest := pcie.Edge{}
	for e, bytes := range per {
		if !links[e.Node].Known() {
			return math.Inf(1), ""
		}
		if r := links[e.Node].Rate() / bytes; r < rate || r == rate && e.String() < slowest.String() {
			rate, slowest = r, e
		}
	}
	return rate, cmp.Or(map[string]string{nic: "the NIC's link", gpu: "the GPU's link"}[slowest.Node], "a switch's link")
}
