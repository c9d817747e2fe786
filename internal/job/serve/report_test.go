package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/testkit"
)

// A shell splits the printed commands into the report's arguments.
//
// Invariant: vnic serve: Printed flags can be pasted into a shell.
func TestPrintedCommandsCanBePasted(t *testing.T) {
	testkit.LeavesNothing(t)
	dir := t.TempDir() + "/it's, $HOME"
	boot := []string{"-kernel", dir + "/kernel", "-append", `a "b" $c`, "-nographic", "-no-reboot", "-cpu", "max"}
	for i, nic := range []string{lab.Virtio, lab.GVE, lab.Virtio, lab.GVE} {
		for _, gpu := range []uint64{0, 2 << 20} {
			shared := i > 1
			w := testkit.Must(lab.Open(lab.Uniform(2, lab.NIC{Model: nic}, gpu), lab.Options{}))(t)
			r := newReport(w, []source{dialer{name: dir + "/a"}, dialer{name: "/tmp/b"}}, false, shared)
			testkit.OK(t, w.Close())
			r.qemu = []string{dir + "/vnic", "qemu", "--"}
			if shared {
				r.Boot = boot
			}
			var b bytes.Buffer
			testkit.OK(t, r.Print(&b))
			blocks := strings.Split(b.String(), "\n\n# ")[1:]
			if len(blocks) != 3 || !strings.HasPrefix(blocks[2], "or all 2 ports in one guest\n") {
				t.Fatalf("%d commands: %s", len(blocks), b.String())
			}
			ids := map[string]string{}
			for i, block := range blocks {
				_, command, _ := strings.Cut(block, "\n")
				out := testkit.Must(exec.Command("sh", "-c", "printf '%s\\n' "+strings.TrimSpace(command)).Output())(t)
				args, sockets := r.AllPorts, []string{r.Ports[0].GPUSocket, r.Ports[1].GPUSocket}
				if i < 2 {
					args, sockets = r.Ports[i].QEMU, sockets[i:i+1]
					for _, id := range idsOf(args) {
						if ids[id] != "" {
							t.Errorf("two ports have %s", id)
						}
						ids[id] = id
					}
				}
				want := slices.Concat(r.qemu, args, r.Boot)
				if gpu > 0 && shared {
					want = slices.Concat([]string{r.program, "gpu-fd"}, sockets, []string{"--"}, want)
				}
				if d := cmp.Diff(want, strings.Split(strings.TrimSpace(string(out)), "\n")); d != "" {
					t.Error(d)
				}
			}
		}
	}
}

func idsOf(args []string) (ids []string) {
	for _, m := range regexp.MustCompile(`\bid"?[=:]"?([a-z0-9-]+)`).FindAllStringSubmatch(strings.Join(args, " "), -1) {
		ids = append(ids, m[1])
	}
	slices.Sort(ids)
	return slices.Compact(ids) // a chardev and a netdev have the id net0
}

// Without QEMU in PATH the command is "vnic qemu", else QEMU's name. Boot's -cpu is left out if QEMU's other arguments
// have one.
func TestPrintedCommandIsWhatThisMachineHas(t *testing.T) {
	testkit.LeavesNothing(t)
	w := testkit.Must(lab.Open(lab.Uniform(1, lab.NIC{Model: lab.Virtio}, 0), lab.Options{}))(t)
	defer w.Close()
	t.Setenv("PATH", t.TempDir())
	r := newReport(w, []source{dialer{name: "/s"}}, false, false)
	testkit.Equal(t, "no QEMU", strings.Join(r.qemu[1:], " "), "qemu --")
	testkit.OK(t, os.WriteFile(os.Getenv("PATH")+"/qemu-system-x86_64", nil, 0o755))
	r = newReport(w, []source{dialer{name: "/s"}}, false, false)
	r.Boot = []string{"-no-reboot", "-cpu", "max"}
	var b strings.Builder
	r.printCommand(&b, nil, []string{"-cpu", "max,family=23", "-smp", "2"})
	testkit.Equal(t, "command", b.String(), "qemu-system-x86_64 \\\n  -cpu max,family=23 \\\n  -smp 2 \\\n  -no-reboot\n")
	if r.AllPorts != nil {
		t.Errorf("one port is all: %q", r.AllPorts)
	}
}

// Unless the accelerator is KVM, the kernel of a guest with several CPUs gets a word against the TSC.
func TestPrintedCommandsKeepTheClockRight(t *testing.T) {
	testkit.LeavesNothing(t)
	const word = "tsc=unstable"
	lab := func(cpus string) (o Options) {
		return taken(t, "guests: {a: {cpus: "+cpus+", nics: [{name: nic0}]}, b: {nics: [{name: nic0, model: gve}]}}",
			t.TempDir())
	}
	ports := Options{Paths: []string{t.TempDir() + "/a"}}
	boot := []string{"-append", "quiet " + word + " x", "-no-reboot"}
	for name, tt := range map[string]struct {
		o     Options
		accel qemu.Accel
		boot  []string
		args  bool // kernel_args has the word
		times int  // how often the printed text has the word
	}{
		"ports":                    {ports, qemu.AccelAuto, nil, true, 1},
		"ports, by KVM":            {ports, qemu.AccelKVM, nil, false, 0},
		"ports, with an image":     {ports, qemu.AccelTCG, boot, true, 1},
		"a lab of one CPU":         {lab("1"), qemu.AccelTCG, nil, false, 0},
		"a lab of several":         {lab("2"), qemu.AccelTCG, nil, true, 1},
		"a lab, with an image":     {lab("2"), qemu.AccelTCG, boot, true, 1},
		"by KVM, several CPUs":     {lab("2"), qemu.AccelKVM, nil, false, 0},
		"three CPUs and one image": {lab("3"), qemu.AccelTCG, boot, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			tt.o.Accel, tt.o.Boot = tt.accel, tt.boot
			s := serve(t, tt.o)
			var b strings.Builder
			testkit.OK(t, s.rep.Print(&b))
			if got := strings.Contains(s.rep.KernelArgs, word); got != tt.args || strings.Count(b.String(), word) != tt.times {
				t.Errorf("kernel_args %q, and %s", s.rep.KernelArgs, &b)
			}
			if strings.Contains(b.String(), "devmem TCP, on the guest kernel's command line: "+word) {
				t.Errorf("%s", &b)
			}
		})
	}
}

// AllPorts has all GPUs and NICs. With more than maxAllPorts ports it is empty.
func TestAllPortsInOneQEMU(t *testing.T) {
	testkit.LeavesNothing(t)
	for _, tt := range []struct {
		ports int
		nic   string
		says  string
	}{
		{9, lab.Virtio, ""},
		{2, lab.Virtio, "-M q35,memory-backend=ram -smp 2 -m 1024M "},
		{3, lab.GVE, "-M q35 -smp 2 -m 1030M "},
	} {
		w := testkit.Must(lab.Open(lab.Uniform(tt.ports, lab.NIC{Model: tt.nic}, 2<<20), lab.Options{}))(t)
		r := newReport(w, slices.Repeat([]source{dialer{name: "/s"}}, tt.ports), false, false)
		testkit.OK(t, w.Close())
		all := strings.Join(r.AllPorts, " ")
		if !strings.HasPrefix(all, tt.says) || tt.says == "" && all != "" {
			t.Errorf("%d of %s: %s", tt.ports, tt.nic, all)
		}
		for i := range r.Ports {
			if all == "" {
				break
			}
			for _, part := range []string{fmt.Sprint("dev-net", i), fmt.Sprint("id=gpu", i)} {
				if strings.Count(all, part) != 1 {
					t.Errorf("%s: not one %s: %s", tt.nic, part, all)
				}
			}
			node := fmt.Sprintf("-numa node,nodeid=%d,memdev=gpu%d", i+1, i)
			if tt.nic == lab.GVE && !strings.Contains(all, node) {
				t.Errorf("no %s: %s", node, all)
			}
		}
	}
}

// Advice is printed for the NICs to which it applies.
func TestPrintedAdvice(t *testing.T) {
	testkit.LeavesNothing(t)
	const ipxe, old = "leave out romfile=", "'vfio-user-pci' is not a valid device model name"
	for _, tt := range []struct {
		nic          lab.NIC
		says, saysNo string
	}{
		{lab.NIC{Model: lab.Virtio}, "QEMU 10.0 or newer.", old},
		{lab.NIC{Model: lab.Virtio}, ipxe + ".\n", "host_mtu=1500:"},
		{lab.NIC{Model: lab.Virtio, NICOptions: lab.NICOptions{MTU: 9000}}, ipxe + " and host_mtu=9000: ", old},
		{lab.NIC{Model: lab.Virtio, NICOptions: lab.NICOptions{MaxMTU: 9000}}, ipxe + ".\n", "and host_mtu"},
		{lab.NIC{Model: lab.Virtio, NICOptions: lab.NICOptions{MTU: 2000, MaxMTU: 9000}}, ipxe + " and host_mtu=9000: ", old},
		{lab.NIC{Model: lab.GVE}, "QEMU 10.1 or newer.", ipxe},
		{lab.NIC{Model: lab.Virtio}, "without mac= QEMU makes one up", old},
		{lab.NIC{Model: lab.GVE}, old, "mac="},
		{lab.NIC{Model: lab.GVE}, old, ipxe},
	} {
		w := testkit.Must(lab.Open(lab.Uniform(1, tt.nic, 0), lab.Options{}))(t)
		r := newReport(w, []source{dialer{name: "/s"}}, false, false)
		r.Gateway = "10.118.110.254"
		var b bytes.Buffer
		testkit.OK(t, errors.Join(r.Print(&b), w.Close()))
		if s := b.String(); !strings.Contains(s, tt.says) || strings.Contains(s, tt.saysNo) {
			t.Errorf("%+v: not %q, or %q: %s", tt.nic, tt.says, tt.saysNo, s)
		}
	}
}

func TestFlags(t *testing.T) {
	testkit.LeavesNothing(t)
	flags := func(nic lab.NIC, gpu uint64, client bool) string {
		w := testkit.Must(lab.Open(lab.Uniform(1, nic, gpu), lab.Options{}))(t)
		defer w.Close()
		r := newReport(w, []source{dialer{name: "/s"}}, client, false)
		return strings.Replace(strings.Join(r.Ports[0].QEMU, " "), "mem-path="+r.Ports[0].GPUPath, "mem-path=GPU", 1) + " " +
			r.KernelArgs
	}
	const ram = "-object memory-backend-memfd,id=ram,size=1024M,share=on "
	const nic = " -netdev vhost-user,id=net0,chardev=net0,queues=3 -device " +
		"virtio-net-pci,id=dev-net0,netdev=net0,disable-legacy=on,mq=on,vectors=8," +
		"rx_queue_size=1024,tx_queue_size=1024,ctrl_guest_offloads=off,romfile=,mac=02:76:6e:69:00:01,host_mtu=1500 "
	const gve = `-device {"driver":"vfio-user-pci","id":"dev-net0","socket":{"path":"/s","type":"unix"}} `
	const udmabuf = "udmabuf.size_limit_mb=1048576 udmabuf.list_limit=1048576"
	for _, tt := range []struct {
		nic    lab.NIC
		gpu    uint64
		client bool
		want   string
	}{
		{lab.NIC{Model: lab.Virtio, QueuePairs: 3}, 2 << 20, false, "-M q35,memory-backend=ram -smp 2 -m 1024M " + ram +
			"-object memory-backend-file,id=gpu0,size=2097152,mem-path=GPU,share=on -device " +
			"ivshmem-plain,id=dev-gpu0,memdev=gpu0 " +
			"-chardev socket,id=net0,path=/s,reconnect-ms=1000" + nic},
		{lab.NIC{Model: lab.Virtio, QueuePairs: 3}, 0, true, "-M q35,memory-backend=ram -smp 2 -m 1024M " + ram +
			"-chardev socket,id=net0,path=/s,server=on" + nic},
		{lab.NIC{Model: lab.Virtio, QueuePairs: 3,
			NICOptions: lab.NICOptions{MaxMTU: 9000}}, 0, true, "-M q35,memory-backend=ram -smp 2 -m 1024M " +
			ram + "-chardev socket,id=net0,path=/s,server=on" + strings.Replace(nic, "host_mtu=1500", "host_mtu=9000", 1)},
		{lab.NIC{Model: lab.Virtio, QueuePairs: 3,
			NICOptions: lab.NICOptions{XDP: true}}, 0, true, "-M q35,memory-backend=ram -smp 2 -m 1024M " + ram +
			"-chardev socket,id=net0,path=/s,server=on" + strings.Replace(nic, "host_mtu=1500", "host_mtu=1500,guest_csum=off,"+
			"guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,guest_uso4=off,guest_uso6=off", 1)},
		{lab.NIC{Model: lab.GVE}, 0, false, "-M q35,memory-backend=ram -smp 2 -m 1024M " + ram + gve + udmabuf},
		{lab.NIC{Model: lab.GVE}, 6 << 20, false, "-M q35 -smp 2 -m 1030M " + ram +
			"-object memory-backend-file,id=gpu0,size=6291456,mem-path=GPU,share=on " +
			"-numa node,nodeid=0,cpus=0-1,memdev=ram -numa node,nodeid=1,memdev=gpu0 " + gve + "nokaslr " + udmabuf},
	} {
		if d := cmp.Diff(tt.want, flags(tt.nic, tt.gpu, tt.client)); d != "" {
			t.Error(d)
		}
	}
}

// The printed JSON has the form of VHostUserBackendCapabilities and VhostUserBackend in QEMU's
// docs/interop/vhost-user.json.
func TestCapabilitiesAndDescriptionKeepToTheSchema(t *testing.T) {
	var b bytes.Buffer
	testkit.OK(t, PrintCapabilities(&b))
	var caps map[string]any
	if err := json.Unmarshal(b.Bytes(), &caps); err != nil || len(caps) != 1 || caps["type"] != "net" {
		t.Errorf("%v, %v", caps, err)
	}
	b.Reset()
	testkit.OK(t, PrintDescription(&b, "/usr/libexec/"+BackendName))
	var d map[string]any
	if err := json.Unmarshal(b.Bytes(), &d); err != nil || d["type"] != "net" ||
		d["binary"] != "/usr/libexec/vhost-user-vnic" ||
		!slices.Equal(slices.Sorted(maps.Keys(d)), []string{"binary", "description", "type"}) {
		t.Errorf("%v, %v", d, err)
	}
}

const names65 = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-_"

func TestBadOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"no socket":             {},
		"--socket-path: no":     {Paths: []string{""}},
		"--socket-path /./x: t": {Paths: []string{"/x", "/./x"}},
		"108 bytes":             {Paths: []string{strings.Repeat("x", 108)}},
		"--fd 3":                {FDs: []int{3, 3}},
		"--fd -1":               {FDs: []int{-1}},
		"one or the other":      {Paths: []string{"/x"}, FDs: []int{3}},
		"--client and --fd":     {FDs: []int{3}, Client: true},
		"--client and --nic":    {Paths: []string{"/x"}, Client: true, NIC: lab.NIC{Model: lab.GVE}},
		"--nic e1000":           {Paths: []string{"/x"}, NIC: lab.NIC{Model: "e1000"}},
		"65 ports with GPU mem": {Paths: strings.Split(names65, ""), GPUMemory: 4096},
	} {
		if o.NIC.Model == "" {
			o.NIC.Model = lab.Virtio
		}
		testkit.ErrorSays(t, o.Check(), want)
	}
}

func TestPaths(t *testing.T) {
	for _, tt := range []struct {
		given, want string
		n           int
	}{
		{"a", "a", 0}, {"a", "a", 1}, {"a%d", "a0", 0}, {"a%d", "a0 a1 a2", 3}, {"a b", "a b", 0}, {"a b", "a b", 2},
		{"", "", 0}, {"a", "bad", 2}, {"a b", "bad", 1},
	} {
		got, err := Paths(strings.Fields(tt.given), tt.n)
		if err != nil {
			got = []string{"bad"}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%q for %d: %q, %v", tt.given, tt.n, got, err)
		}
	}
}

func TestInheritedSocketsAreForThisProcess(t *testing.T) {
	t.Setenv("LISTEN_FDS", "2")
	t.Setenv("LISTEN_PID", "1")
	if fds := Inherited(); fds != nil {
		t.Errorf("another's: %v", fds)
	}
	t.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
	if fds := Inherited(); !slices.Equal(fds, []int{3, 4}) {
		t.Errorf("ours: %v", fds)
	}
}
