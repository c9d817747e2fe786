package boot

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/gpusocket"
	_ "vnic.dev/vnic/internal/guestbin" // guests of the tests run the guest program that make has built
	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/guesttools"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/assets/toolimage"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/testkit"
)

func good() Options {
	return Options{NIC: lab.Virtio, Guests: 1, CPUs: 1, Memory: 512 << 20, GPUMemory: 64 << 20,
		NICOptions: lab.NICOptions{MTU: 1500},
		Command:    []string{"x"}, Common: session.Common{Note: func(string, ...any) {}}}
}

func TestBadOptionsAreRefusedByName(t *testing.T) {
	o := good()
	testkit.OK(t, o.Check())
	for want, change := range map[string]func(o *Options){
		"--nic e1000":       func(o *Options) { o.NIC = "e1000" },
		"--guests 0":        func(o *Options) { o.Guests = 0 },
		"--guests 65":       func(o *Options) { o.Guests = 65 },
		"--guests: a shell": func(o *Options) { o.Guests, o.Command = 2, nil },
		"--cpus 0":          func(o *Options) { o.CPUs = 0 },
		"--memory 100M":     func(o *Options) { o.Memory = 100 << 20 },
		"--gpu-memory 3M":   func(o *Options) { o.GPUMemory = 3 << 20 },
		"--mtu 60":          func(o *Options) { o.MTU = 60 },
		"--max-mtu 1499":    func(o *Options) { o.MaxMTU = 1499 },
		"--max-mtu 9199: 1500 (mtu) to 9198 with model gve": func(o *Options) { o.NIC, o.MaxMTU = lab.GVE, 9199 },
		"--xdp with model gve":                              func(o *Options) { o.NIC, o.XDP = lab.GVE, true },
		"--rsc-usecs -5":                                    func(o *Options) { o.RSCUsecs = -5 },
		"--modules without":                                 func(o *Options) { o.Fetch.Modules = "/x" },
		"--gdb 65535":                                       func(o *Options) { o.GDB = 65535 },
		"--env \"=x\"":                                      func(o *Options) { o.Env = []string{"=x"} },
		"--forward 80":                                      func(o *Options) { o.Forwards = []string{"80"} },
		"no guest \"guest1\"":                               func(o *Options) { o.Forwards = []string{"80:guest1:80"} },
		"not with --no-gate": func(o *Options) {
			o.Forwards, o.NoGateway = []string{"80:80"}, true
		},
	} {
		o := good()
		change(&o)
		testkit.ErrorSays(t, o.Check(), want)
	}
	for _, nic := range []string{lab.Virtio, lab.GVE} {
		o := good()
		o.NIC, o.Guests, o.GPUMemory = nic, MaxGuests, 0
		testkit.OK(t, o.Check())
	}
}

// With virtio a guest has a second NIC, which the kernel does not drive. No two NICs have the same MAC, and no two
// entries of a guest's hosts file the same address.
func TestGuestsHaveNICsOfTheirOwn(t *testing.T) {
	defer goleak.VerifyNone(t)
	for nic, each := range map[string]int{lab.Virtio: 2, lab.GVE: 1} {
		o := good()
		o.NIC, o.Guests, o.Forwards = nic, 3, []string{"udp:1:guest2:2"}
		o.Forwards = nil // for a forward, the gateway would listen at a port of this machine
		services := testkit.Must(o.gateway())(t)
		w := testkit.Must(lab.Open(o.describe(), lab.Options{Services: services}))(t)
		seen := map[string]bool{}
		for _, p := range o.places(w) {
			var c qemu.Config
			machine.Attach(&c, p.hw)
			n := o.network(p)
			if len(c.Netdevs) != each || len(c.GPUs) != 1 || len(n.Interfaces) != each ||
				n.Interfaces[each-1].Leave != (each == 2) || len(n.Gateways) != 2 {
				t.Errorf("%s: %+v, %+v", nic, c, n)
			}
			for _, i := range n.Interfaces {
				if seen[i.MAC] {
					t.Errorf("%s twice", i.MAC)
				}
				seen[i.MAC] = true
			}
			var names []string
			for _, h := range n.Hosts {
				if seen[h.Addr.String()] && p.index == 0 {
					t.Errorf("%v twice", h.Addr)
				}
				seen[h.Addr.String()] = true
				names = append(names, h.Names...)
			}
			for _, want := range []string{"guest0", "guest2", "guest2-devmem", "gateway"} {
				if !slices.Contains(names, want) {
					t.Errorf("%s: %q does not resolve", nic, want)
				}
			}
		}
		testkit.OK(t, w.Close())
	}
}

// VNIC_GPU is set only if the kernel drives a NIC that reaches a GPU; the other variables describe the NIC.
func TestEnvironmentSaysWhatThereIs(t *testing.T) {
	for _, c := range []struct {
		nic    string
		memory uint64
		device string
		gpu    bool
	}{{lab.Virtio, 64 << 20, "0000:00:04.0", false}, {lab.GVE, 64 << 20, "eth0", true}, {lab.GVE, 0, "eth0", false}} {
		o := good()
		o.NIC, o.GPUMemory, o.Guests = c.nic, c.memory, 2
		w := testkit.Must(lab.Open(o.describe(), lab.Options{}))(t)
		g := &guest{runner: &runner{opt: &o, program: &program{}}, place: o.places(w)[1],
			network: guestnet.Result{Interfaces: []guestnet.Found{{Name: "eth0", PCI: "0000:00:03.0"},
				{Name: "eth1", PCI: "0000:00:04.0"}}}}
		if c.nic == lab.GVE {
			g.network.Interfaces = g.network.Interfaces[:1]
		}
		env := g.env()
		for _, want := range []string{"VNIC_INDEX=1", "VNIC_GUESTS=2", "VNIC_DEVICE=" + c.device,
			"VNIC_ADDR=10.118.110.102/24"} {
			if !slices.Contains(env, want) {
				t.Errorf("%+v: no %s in %q", c, want, env)
			}
		}
		if slices.Contains(env, "VNIC_GPU="+gpusocket.Path) != c.gpu {
			t.Errorf("%+v: %q", c, env)
		}
		testkit.OK(t, w.Close())
	}
}

// Invariant: vnic boot: Mistakes are found before anything boots.
func TestCommandsAreFoundOrRefused(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for name, mode := range map[string]os.FileMode{"run": 0o755, "plain": 0o644} {
		testkit.OK(t, os.WriteFile(name, []byte("#!/bin/sh\n"), mode))
	}
	for name, c := range map[string]struct {
		command, copies []string
		path, says      string
	}{
		"relative":       {[]string{"./run", "a"}, nil, dir + "/run", ""},
		"in PATH":        {[]string{"sh"}, nil, "/sh", ""},
		"guest's":        {[]string{"devmem"}, nil, "devmem", ""},
		"copied":         {[]string{"/opt/x"}, []string{"run:/opt/x"}, "/opt/x", ""},
		"copied into":    {[]string{"/opt/run"}, []string{"run:/opt/"}, "/opt/run", ""},
		"same place":     {[]string{"./plain"}, []string{"plain"}, dir + "/plain", ""},
		"shell":          {nil, nil, "sh", ""},
		"none":           {[]string{"./none"}, nil, "", "command ./none: no such file on this machine, and no --copy"},
		"none in PATH":   {[]string{"no-such-program"}, nil, "", "give that by --tools PACKAGE"},
		"not executable": {[]string{"./plain"}, nil, "", "not executable: chmod +x"},
		"directory":      {[]string{"./"}, nil, "", "not a program"},
		"bad copy":       {[]string{"sh"}, []string{"none:/x"}, "", "--copy none:/x: "},
		"copy nowhere":   {[]string{"sh"}, []string{"run:"}, "", "--copy run:: HOST:GUEST"},
		"copy to proc":   {[]string{"sh"}, []string{"run:/proc/x"}, "", "below /proc"},
	} {
		o := good()
		o.Command, o.Copies = c.command, c.copies
		p, err := o.prepare(t.Context(), nil)
		var use *UseError
		switch {
		case c.says != "" && (!errors.As(err, &use) || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v", name, err)
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.says == "" && !strings.HasSuffix(p.path, c.path):
			t.Errorf("%s: %q", name, p.path)
		}
	}
}

func TestCommandsOfACacheThatIsAFile(t *testing.T) {
	testkit.Source(t)
	o := good()
	o.Fetch.CacheDir = filepath.Join(t.TempDir(), "file")
	testkit.OK(t, os.WriteFile(o.Fetch.CacheDir, nil, 0o600))
	_, err := o.userland(t.Context())()
	if missing := (*assets.Missing)(nil); !errors.As(err, &missing) || !errors.Is(err, assets.ErrNoCache) {
		t.Errorf("%v", err)
	}
}

// A program is looked for first in the packages of --tools, then on this machine, then among u-root's commands.
func TestCommandsAreThePackagesFirst(t *testing.T) {
	testkit.Source(t)
	o := good()
	o.Fetch.Offline = testing.Short()
	commands, err := o.userland(t.Context())()
	if testing.Short() && errors.Is(err, guestimages.ErrNoUserland) {
		t.Skip(err)
	}
	testkit.OK(t, err)
	testkit.Equal(t, "in order", slices.IsSorted(commands.Names()), true)
	for _, n := range strings.Fields("cat dmesg insmod ip ls lsmod mount netcat ping ps sh wget") {
		if !commands.Has(n) {
			t.Errorf("there is no %s", n)
		}
	}
	set := testkit.Must(toolimage.Parse("net"))(t)
	tools := &packages{set: set, image: &toolimage.Image{Programs: []toolimage.Program{
		{Name: "iperf3", Path: "/usr/bin/iperf3"}, {Name: "here", Path: "/usr/bin/here"}}}}
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	testkit.OK(t, os.WriteFile(filepath.Join(dir, "here"), []byte("#!/bin/sh\n"), 0o755))
	for _, c := range []struct {
		name  string
		tools *packages
		path  string
		says  string
	}{
		{"iperf3", tools, guesttools.BinDir + "/iperf3", ""}, {"here", tools, guesttools.BinDir + "/here", ""},
		{"here", nil, dir + "/here", ""}, {"ls", tools, guestimages.UserlandDir + "/ls", ""},
		{"sh", nil, guestimages.UserlandDir + "/sh", ""}, {"/bbin/ls", nil, "/bbin/ls", ""},
		{"ethtool", tools, "", "nor in --tools net: "}, {"iperf3", nil, "", "--tools PACKAGE"},
		{"/bbin/none", nil, "", "no such file"},
	} {
		o.Command = []string{c.name}
		p, err := o.prepare(t.Context(), c.tools)
		switch {
		case c.says != "":
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v, want %q", c.name, err, c.says)
			}
		case err != nil || p.path != c.path:
			t.Errorf("%s: %v, %v; want %s", c.name, p, err, c.path)
		}
	}
}

func TestBadToolsAreRefused(t *testing.T) {
	for _, text := range []string{"NET", "net,", "none,net", "a b", "../x", "x;y"} {
		o := good()
		if o.Tools = text; o.Check() == nil {
			t.Errorf("--tools %q is taken", text)
		}
	}
	o := good()
	for _, o.Tools = range []string{"", "none", "net", "net,python3-yaml"} {
		testkit.NoError(t, o.Check())
	}
}

func TestLinesKeepWholeAndSayWhose(t *testing.T) {
	var b bytes.Buffer
	mu := new(sync.Mutex)
	x, y := &lines{mu: mu, w: &b, prefix: "[0] "}, &lines{mu: mu, w: &b, prefix: "[1] "}
	for _, s := range []struct {
		l    *lines
		text string
	}{{x, "one\ntw"}, {y, "a"}, {x, "o\n\n"}, {y, "b\nlast"}, {x, ""}} {
		if n, err := s.l.Write([]byte(s.text)); n != len(s.text) || err != nil {
			t.Fatal(n, err)
		}
	}
	x.end()
	y.end()
	testkit.Equal(t, "lines", b.String(), "[0] one\n[0] two\n[0] \n[1] ab\n[1] last\n")
	b.Reset()
	long := bytes.Repeat([]byte("x"), 3*maxLine)
	if n, err := x.Write(long); n != len(long) || err != nil || len(x.buf) > maxLine {
		t.Errorf("%d, %v, %d kept", n, err, len(x.buf))
	}
	x.end()
	testkit.Equal(t, "bytes", strings.Count(b.String(), "x"), len(long))
}
