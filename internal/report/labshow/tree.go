package labshow

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/lab/pcie"
)

type view struct {
	tree       *pcie.Tree
	nics, gpus []string           // endpoints in the tree
	about      map[string]string  // text beside a node, by its name
	off        bool               // peer-to-peer is off
	linux      []lab.Pairs        // a guest's kernel refuses these, or decides otherwise than the lab; nil in Host
	apart      map[[2]string]bool // by NIC and GPU: the NIC may not address the GPU
}

// Lab prints, for each guest of a lab, its PCIe tree and how its NICs reach its GPUs' memory. Guests with equal output
// share one copy.
func Lab(w io.Writer, l *labfile.Lab) error {
	var texts []string
	names := make(map[string][]string)
	d := l.Complete()
	for i := range d.Guests {
		var b strings.Builder
		if err := guestView(l, &d, i).print(&b); err != nil {
			return err
		}
		text := b.String()
		if names[text] == nil {
			texts = append(texts, text)
		}
		names[text] = append(names[text], d.Guests[i].Name)
	}
	var b strings.Builder
	for i, text := range texts {
		if i > 0 {
			b.WriteByte('\n')
		}
		word := "guest "
		if len(names[text]) > 1 {
			word = "guests "
		}
		b.WriteString(word + strings.Join(names[text], ", ") + "\n\n" + text)
	}
	b.WriteString("\n" + legend)
	_, err := io.WriteString(w, b.String())
	return err
}

const legend = `PIX: through one PCIe switch. PXB: several. PHB: a host bridge. NODE: two of one NUMA node.
SYS: the sockets' link.
direct: the NIC reads and writes GPU memory itself. bounced: payload goes through host memory.
-: no GPU of the NIC's.
`

func guestView(l *labfile.Lab, d *lab.Description, i int) *view {
	g := &d.Guests[i]
	v := &view{about: make(map[string]string), off: d.NoP2P}
	v.tree, v.nics, v.gpus = d.Tree(i)
	for _, s := range g.Sockets {
		v.about[s.Name] = "host bridge forwards " + map[pcie.Routing]string{pcie.NoRouting: "nothing",
			pcie.SameBridge: "between its ports", pcie.AnyBridge: "between its ports and those of others"}[s.Routing]
	}
	for j, n := range g.NICs {
		mtu := fmt.Sprint("MTU ", n.MTU)
		if n.MaxMTU != n.MTU {
			mtu += fmt.Sprintf(" (%d at most)", n.MaxMTU)
		}
		v.about[v.nics[j]] = fmt.Sprintf("%s, %s, %d queues", n.Model, mtu, n.QueuePairs) + hotplug(n.Hotplug)
	}
	v.apart = make(map[[2]string]bool)
	for j, m := range g.GPUs {
		v.about[v.gpus[j]] = lab.FormatBytes(m.Memory) + hotplug(m.Hotplug)
		if g.Driver == lab.DriverVNICGPU {
			v.about[v.gpus[j]] += ", driver " + g.Driver
		}
		for k := range g.NICs {
			v.apart[[2]string{v.nics[k], v.gpus[j]}] = !g.NICs[k].Reaches(j)
		}
	}
	linux := lab.SeenByLinux(v.tree, g.Driver)
	if g.Driver == lab.DriverVNICGPU && !v.off {
		v.linux = d.Refused(i, linux.Path)
	}
	v.linux = append(v.linux, d.Differences(i, linux.Path)...)
	return v
}

func hotplug(on bool) string {
	if on {
		return ", hotplug"
	}
	return ""
}

func (v *view) print(w io.Writer) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	v.branch(t, "", "")
	_ = t.Flush()
	for line := range strings.Lines(b.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	if !v.pairs() {
		_, err := fmt.Fprintln(w, "\nno pair of a NIC and a GPU")
		return err
	}
	fmt.Fprintln(w)
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\t"+strings.Join(v.gpus, "\t"))
	for _, n := range v.nics {
		row := n
		for _, g := range v.gpus {
			if v.apart[[2]string{n, g}] {
				row += "\t-"
				continue
			}
			p := v.path(n, g)
			row += "\t" + p.Distance.String() + " " + verdict(p)
		}
		fmt.Fprintln(t, row)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return v.reasons(w)
}

func (v *view) pairs() bool { return len(v.nics) > 0 && len(v.gpus) > 0 }

func (v *view) path(nic, gpu string) pcie.Path {
	p := v.tree.Path(nic, gpu)
	if v.off {
		p = p.Off()
	}
	return p
}

func verdict(p pcie.Path) string {
	if p.P2P() {
		return "direct"
	}
	return "bounced"
}

func (v *view) branch(w io.Writer, above, indent string) {
	children := v.tree.Children(above)
	for i, n := range children {
		twig, more := "├─ ", "│  "
		if i == len(children)-1 {
			twig, more = "└─ ", "   "
		}
		if above == "" {
			twig, more = "", ""
		}
		link := ""
		if n.Link.Known() {
			link = n.Link.String()
		}
		about := v.about[n.Name]
		if n.Redirect {
			about = strings.TrimPrefix(about+", port redirects (ACS)", ", ")
		}
		fmt.Fprintln(w, indent+twig+n.Name+"\t"+link+"\t"+about)
		v.branch(w, n.Name, indent+more)
	}
}

// reasons writes each reason for a verdict once, with its pairs of a NIC and a GPU (Pairs.Some), and then v.linux.
func (v *view) reasons(w io.Writer) error {
	var list []lab.Pairs
	for _, n := range v.nics {
		for _, g := range v.gpus {
			if p := v.path(n, g); !v.apart[[2]string{n, g}] {
				list = lab.AddPair(list, verdict(p)+": "+p.Reason, n, g)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b lab.Pairs) int { return -cmp.Compare(verdictOf(a.Text), verdictOf(b.Text)) })
	for _, x := range append(list, v.linux...) {
		if _, err := fmt.Fprintf(w, "%s\n    %s\n", x.Text, x.Some()); err != nil {
			return err
		}
	}
	return nil
}

// verdictOf returns the sort key of a reason. Direct comes before bounced, as the order is descending.
func verdictOf(text string) string {
	word, _, _ := strings.Cut(text, ":")
	return word
}
