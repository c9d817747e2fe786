package serve

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize/english"

	"vnic.dev/vnic/internal/gpufd"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/wire/gateway"
)

// Report is what `vnic serve` prints when QEMUs may connect. Its keys are API.
type Report struct {
	Schema        int          `json:"schema"` // version of this form
	NIC           string       `json:"nic"`
	PID           int          `json:"pid"`
	OldestQEMU    string       `json:"oldest_qemu"`
	Client        bool         `json:"client"`  // QEMU listens at the sockets
	Gateway       string       `json:"gateway"` // its IPv4 address; "": none
	KernelArgs    string       `json:"kernel_args"`
	GPUModule     bool         `json:"gpu_module,omitempty"` // some guests need vnicgpu.ko, the driver of their GPUs
	ResidentBytes uint64       `json:"resident_bytes"`       // this process's memory, without GPUs' and guests'
	PortBytes     uint64       `json:"port_bytes"`           // part of ResidentBytes for a port, on average
	Ports         []PortReport `json:"ports"`
	// AllPorts has the arguments of one QEMU with all ports, for 2 to 8 named sockets without a lab file.
	AllPorts []string `json:"all_ports,omitempty"`
	// Boot is Options.Boot: arguments for every QEMU, after its others.
	Boot []string `json:"boot,omitempty"`
	// Guests are the guests of a lab file. Then Ports have no arguments of QEMU and no GPU.
	Guests []GuestReport `json:"guests,omitempty"`

	mtu     int
	maxMTU  int      // maximal MTU of the first port
	program string   // name or path of this program
	qemu    []string // begin of a command that starts QEMU
	gateway gateway.Options
	clock   string // end of KernelArgs, for several CPUs unless Options.Accel is KVM; may be ""
}

// PortReport describes a port.
type PortReport struct {
	Name     string `json:"name"`
	Socket   string `json:"socket"` // "": no name
	MAC      string `json:"mac"`
	Addr4    string `json:"addr4"` // the guest's
	Addr6    string `json:"addr6"`
	GPUBytes uint64 `json:"gpu_bytes"` // 0: none
	GPUPath  string `json:"gpu_path"`
	// GPUSocket is where `vnic gpu-fd` gets the GPU's memory; "": QEMU opens GPUPath, if there is one.
	GPUSocket string   `json:"gpu_socket"`
	QEMU      []string `json:"qemu"` // QEMU's arguments; empty with a lab file
}

// GuestReport is a guest of a lab file.
type GuestReport struct {
	Name  string      `json:"name"`
	Ports []string    `json:"ports"` // their names
	GPUs  []GPUReport `json:"gpus"`
	QEMU  []string    `json:"qemu"` // QEMU's arguments: CPUs, RAM, PCIe tree, GPUs and NICs
}

// GPUReport is a GPU of a lab file's guest.
type GPUReport struct {
	Name  string `json:"name"`
	Bytes uint64 `json:"bytes"`
	Path  string `json:"path"`
}

// addGuests adds a lab file's guests, sets GPUModule, and clears AllPorts and the ports' GPUs and arguments.
func (r *Report) addGuests(l *lab.Lab, file *labfile.Lab, client bool) error {
	r.AllPorts = nil
	ports := r.Ports
	for i, hw := range l.Machines() {
		c := qemu.Config{RAMSize: file.Machines[i].RAM, CPUs: file.Machines[i].CPUs}
		machine.Attach(&c, hw)
		g := GuestReport{Name: hw.Name, GPUs: []GPUReport{}}
		for j, p := range hw.Ports {
			n := &c.Netdevs[j]
			n.Connected, n.Path, n.Listens = nil, ports[j].Socket, client
			g.Ports = append(g.Ports, p.Name)
			ports[j].GPUBytes, ports[j].GPUPath, ports[j].QEMU = 0, "", []string{}
		}
		for j, m := range hw.GPUs {
			g.GPUs = append(g.GPUs, GPUReport{file.Guests[i].GPUs[j].Name, m.Size(),
				fmt.Sprintf("/proc/%d/fd/%d", r.PID, m.File.Fd())})
			r.GPUModule = r.GPUModule || hw.Driver == lab.DriverVNICGPU
		}
		var err error
		if g.QEMU, err = c.MachineArgs(); err != nil {
			return fmt.Errorf("guest %s: %w", hw.Name, err)
		}
		r.Guests, ports = append(r.Guests, g), ports[len(hw.Ports):]
	}
	return nil
}

// addModels sets the NICs' models, the oldest QEMU for them, and words for the kernel's command line.
func (r *Report) addModels(l *lab.Lab) {
	var models, words []string
	for _, hw := range l.Machines() {
		if slices.ContainsFunc(hw.GPUs, func(g *lab.GPUMemory) bool { return g.Node }) {
			words = []string{noKASLR}
		}
		for _, p := range hw.Ports {
			models = append(models, p.Model.Name)
		}
	}
	slices.Sort(models)
	models = slices.Compact(models)
	r.NIC, r.OldestQEMU = strings.Join(models, ","), assets.MinQEMU
	for _, name := range models {
		if m, _ := lab.LookupModel(name); m.VFIOUser {
			r.OldestQEMU = assets.MinVFIOUser
		}
		words = append(words, machine.SoftwareFor(name).KernelArgs)
	}
	r.KernelArgs = strings.TrimSpace(strings.Join(words, " "))
}

func (r *Report) addClock(words string) {
	r.KernelArgs, r.clock = strings.TrimSpace(r.KernelArgs+" "+words), words
}

// noKASLR is a word for the kernel's command line: with KASLR the kernel may place itself in the NUMA node
// that is a GPU.
const noKASLR = "nokaslr"

const guestRAM = 1 << 30

// guestCPUs is the number of CPUs in the printed arguments, unless there is a lab file. A guest with a single CPU may
// lose kicks under TCG (internal/machine/qemu/args.go, cpus).
const guestCPUs = 2

// newReport reports a lab's NICs with QEMU's arguments. shared: QEMUs get the GPUs' memory from sockets.
func newReport(l *lab.Lab, sources []source, client, shared bool) *Report {
	first := l.Port(0)
	m := first.Model
	r := &Report{Schema: 1, PID: os.Getpid(), Client: client, mtu: l.MTU(), maxMTU: first.MaxMTU, program: program()}
	r.addModels(l)
	var all []gpu
	var nics []string
	for i, p := range l.Ports() {
		e := PortReport{Name: p.Name, MAC: net.HardwareAddr(p.MAC[:]).String(), Addr4: p.Addr4.String(),
			Addr6: p.Addr6.String()}
		if path := sources[i].path(); path != "" {
			e.Socket, _ = filepath.Abs(path)
		}
		var gpus []gpu
		if m := p.GPU(); m != nil {
			e.GPUBytes, e.GPUPath = m.Size(), fmt.Sprintf("/proc/%d/fd/%d", r.PID, m.File.Fd())
			gpus = []gpu{{id("gpu", i), e.GPUBytes, e.GPUPath}}
			all = append(all, gpus...)
			if shared {
				e.GPUSocket, gpus[0].path, all[len(all)-1].path = e.Socket+gpufd.Suffix, gpufd.Path(0), gpufd.Path(i)
			}
		}
		ram := "ram"
		if i > 0 { // ids differ: one QEMU may get the arguments of several ports
			ram = id(ram, i)
		}
		nic := nicArgs(id("net", i), p, &e, client)
		e.QEMU, nics = append(machineArgs(m, ram, gpus), nic...), append(nics, nic...)
		r.Ports = append(r.Ports, e)
	}
	r.qemu = []string{qemuName}
	if _, err := exec.LookPath(qemuName); err != nil {
		r.qemu = []string{r.program, "qemu", "--"}
	}
	named := !slices.ContainsFunc(r.Ports, func(p PortReport) bool { return p.Socket == "" })
	if n := len(r.Ports); named && n > 1 && n <= maxAllPorts {
		r.AllPorts = append(machineArgs(m, "ram", all), nics...)
	}
	return r
}

const qemuName = "qemu-system-x86_64"

// maxAllPorts is the most ports with which AllPorts is set: their arguments fill a screen.
const maxAllPorts = 8

func id(name string, i int) string { return name + strconv.Itoa(i) }

type gpu struct {
	id    string
	bytes uint64
	path  string
}

// machineArgs returns QEMU's arguments for the machine, CPUs, shared RAM, and the GPUs' memory.
func machineArgs(m lab.Model, ramID string, gpus []gpu) []string {
	total, smp := uint64(guestRAM), strconv.Itoa(guestCPUs)
	ram := []string{"-object", fmt.Sprintf("memory-backend-memfd,id=%s,size=%dM,share=on", ramID, guestRAM>>20)}
	if !m.Node || len(gpus) == 0 {
		args := append([]string{"-M", "q35,memory-backend=" + ramID, "-smp", smp, "-m", fmt.Sprintf("%dM", total>>20)},
			ram...)
		for _, g := range gpus {
			args = append(args, qemu.BARArgs(g.id, g.bytes, g.path, "")...)
		}
		return args
	}
	objects, nodes := ram, []string{"-numa", fmt.Sprintf("node,nodeid=0,cpus=0-%d,memdev=%s", guestCPUs-1, ramID)}
	for i, g := range gpus {
		total += g.bytes
		objects = append(objects, "-object", qemu.MemoryFile(g.id, g.bytes, g.path))
		nodes = append(nodes, "-numa", fmt.Sprintf("node,nodeid=%d,memdev=%s", i+1, g.id))
	}
	args := append([]string{"-M", "q35", "-smp", smp, "-m", fmt.Sprintf("%dM", total>>20)}, objects...)
	return append(args, nodes...)
}

// program returns "vnic" if PATH leads to this program by that name, or if its path is unknown; else its path.
func program() string {
	const name = "vnic"
	address, err := os.Executable()
	if err != nil {
		return name
	}
	if path, err := exec.LookPath(name); err == nil {
		a, errA := os.Stat(address)
		b, errB := os.Stat(path)
		if errA == nil && errB == nil && os.SameFile(a, b) {
			return name
		}
	}
	return address
}

func nicArgs(id string, p *lab.Port, e *PortReport, client bool) []string {
	if e.Socket == "" {
		return nil
	}
	n := machine.Netdev(p)
	n.Path, n.Listens = e.Socket, client
	return n.Args(id)
}

func resident() uint64 {
	debug.FreeOSMemory()
	b, _ := os.ReadFile("/proc/self/status")
	for line := range bytes.Lines(b) {
		if f := strings.Fields(string(line)); len(f) == 3 && f[0] == "RssAnon:" {
			kib, _ := strconv.ParseUint(f[1], 10, 64)
			return kib << 10
		}
	}
	return 0
}

func leadsTo(o *gateway.Options) string {
	switch ports := o.Policy.HostPorts.String(); {
	case !o.NAT:
		return "DHCP, and DNS of the guests' names; it leads nowhere else"
	case ports == "none":
		return "DHCP, DNS, and this machine's network, but for its own ports (--host-ports)"
	case ports == "all":
		return "DHCP, DNS, and this machine's network; its own address leads to this machine's loopback, all ports are open"
	default:
		return "DHCP, DNS, and this machine's network; its own address leads to this machine's loopback, ports " + ports
	}
}

// Print writes the report as text, with a QEMU command for each port and, with AllPorts, one for all ports, or with a
// lab file one for each guest. For a port whose socket has no name it writes only QEMU's arguments without the NIC.
func (r *Report) Print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s on one switch: %d KiB of memory for each, %d KiB in all\n", len(r.Ports),
		english.PluralWord(len(r.Ports), r.NIC+" NIC", ""), r.PortBytes>>10, r.ResidentBytes>>10)
	fmt.Fprintf(&b, "QEMU %s or newer. Any guest RAM will do, as long as it is shared memory.\n", r.OldestQEMU)
	if r.OldestQEMU == assets.MinVFIOUser {
		fmt.Fprintln(&b,
			"An older one says: 'vfio-user-pci' is not a valid device model name. A virtio NIC (--nic virtio) does with "+
				"QEMU "+assets.MinQEMU+".")
	}
	if r.NIC == lab.Virtio {
		also := ""
		if r.mtu > 1500 {
			also = fmt.Sprintf(" and host_mtu=%d: iPXE 2.0.0 (QEMU 11.1) crashes when a router tells it an MTU above 1500 "+
				"that it can use", r.maxMTU)
		}
		fmt.Fprintf(&b, "To boot from the network (iPXE), leave out romfile=%s.\n", also)
	}
	if r.Gateway != "" && strings.Contains(r.NIC, lab.Virtio) {
		fmt.Fprintln(&b,
			"A guest has its port's addresses by its MAC: without mac= QEMU makes one up, and DHCP gives another address.")
	}
	if r.Gateway != "" {
		fmt.Fprintf(&b, "gateway %s: %s\n", r.Gateway, leadsTo(&r.gateway))
	}
	if words := strings.TrimSpace(strings.TrimSuffix(r.KernelArgs, r.clock)); words != "" {
		fmt.Fprintf(&b, "for devmem TCP, on the guest kernel's command line: %s\n", words)
	}
	if r.clock != "" && len(r.Boot) == 0 { // with Boot the commands contain it
		fmt.Fprintf(&b, "without KVM, on the guest kernel's command line: %s, or a guest with several CPUs may stand still "+
			"while it boots\n", r.clock)
	}
	if r.GPUModule {
		fmt.Fprintln(&b, "guests with driver: vnicgpu load vnicgpu.ko: 'vnic image build --gpu-driver vnicgpu' builds it "+
			"(guest-images/vnicgpu/README.md)")
	}
	var shared []string
	for i := range r.Ports {
		p := &r.Ports[i]
		fmt.Fprintf(&b, "\n# %s: %s, for %s and %s\n", p.Name, p.MAC, p.Addr4, p.Addr6)
		switch {
		case p.Socket == "":
			fmt.Fprintln(&b, "# its socket has no name: QEMU has it already")
			printArgs(&b, nil, p.QEMU)
		case len(r.Guests) > 0:
		case p.GPUSocket != "":
			shared = append(shared, p.GPUSocket)
			r.printCommand(&b, []string{p.GPUSocket}, p.QEMU)
		default:
			r.printCommand(&b, nil, p.QEMU)
		}
	}
	if len(r.AllPorts) > 0 && len(r.Guests) == 0 {
		fmt.Fprintf(&b, "\n# or all %d ports in one guest\n", len(r.Ports))
		r.printCommand(&b, shared, r.AllPorts)
	}
	for i := range r.Guests {
		g := &r.Guests[i]
		fmt.Fprintf(&b, "\n# guest %s, with %s\n", g.Name, strings.Join(g.Ports, ", "))
		r.printCommand(&b, nil, g.QEMU)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printCommand writes a QEMU command with args and r.Boot for a shell; with sockets, `vnic gpu-fd` starts QEMU.
func (r *Report) printCommand(w io.Writer, sockets, args []string) {
	command := r.qemu
	if len(sockets) > 0 {
		command = slices.Concat([]string{r.program, "gpu-fd"}, sockets, []string{"--"}, command)
	}
	boot := r.Boot
	if i := slices.Index(boot, "-cpu"); i >= 0 && slices.Contains(args, "-cpu") { // args have their own -cpu
		boot = slices.Delete(slices.Clone(boot), i, i+2)
	}
	smp, line := slices.Index(args, "-smp")+1, slices.Index(boot, "-append")+1
	if smp > 0 && strings.HasPrefix(args[smp], "1,") && line > 0 { // a guest with one CPU
		boot = slices.Clone(boot)
		boot[line] = qemu.ForMachine(boot[line], 1, qemu.AccelTCG)
	}
	printArgs(w, command, slices.Concat(args, boot))
}

// printArgs writes command and args for a shell, a flag with its value on a line.
func printArgs(w io.Writer, command, args []string) {
	var lines []string
	if len(command) > 0 {
		words := make([]string, len(command))
		for i, c := range command {
			words[i] = quote(c)
		}
		lines = append(lines, strings.Join(words, " "))
	}
	for len(args) > 0 {
		line := "  " + args[0]
		if args = args[1:]; len(args) > 0 && !strings.HasPrefix(args[0], "-") {
			line += " " + quote(args[0])
			args = args[1:]
		}
		lines = append(lines, line)
	}
	fmt.Fprintln(w, strings.Join(lines, " \\\n"))
}

func quote(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
