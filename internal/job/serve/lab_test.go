package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/testkit"
)

const labOfTwo = `
guests:
  a:
    memory: 256M
    sockets: [{name: s0}]
    switches: [{name: sw0, below: s0}]
    nics: [{name: nic0, below: sw0}, {name: nic1, below: sw0, ipv4: 192.0.2.2/24}]
    gpus: [{name: gpu0, below: sw0, memory: 4M}, {name: gpu1, below: s0, memory: 2M}]
  b:
    nics: [{name: nic0, model: gve}, {name: nic1, gpus: [], ipv4: 192.0.2.1/24}]
    gpus: [{name: gpu0, memory: 6M}]
`

// taken returns options for the NICs of file, the text of a lab file, with sockets in dir.
func taken(t *testing.T, file, dir string) (o Options) {
	l := testkit.Must(labfile.Parse("f", []byte(file)))(t)
	testkit.OK(t, o.Take(l, []string{filepath.Join(dir, "%s.sock")}))
	testkit.OK(t, o.Check())
	return o
}

// With the driver vnicgpu, QEMU's arguments have the GPUs as PCI devices, and the report asks for the module.
func TestLabWithTheGPUsDriver(t *testing.T) {
	testkit.LeavesNothing(t)
	s := serve(t, taken(t, `
guests:
  a:
    memory: 256M
    sockets: [{name: s0, p2p: any}]
    nics: [{name: nic0, below: s0, model: gve}]
    gpus: [{name: gpu0, below: s0, memory: 4M}]
    driver: vnicgpu
`, t.TempDir()))
	line := strings.Join(s.rep.Guests[0].QEMU, " ")
	for _, part := range []string{"-cpu max,family=23", "ivshmem-plain,id=dev-gpu0,memdev=gpu0,bus=pcie-port.gpu0"} {
		if !strings.Contains(line, part) {
			t.Errorf("not %q in %s", part, line)
		}
	}
	var output strings.Builder
	testkit.OK(t, s.rep.Print(&output))
	if strings.Contains(s.rep.KernelArgs, noKASLR) || !s.rep.GPUModule ||
		!strings.Contains(output.String(), "vnicgpu.ko") {
		t.Errorf("%+v\n%s", s.rep, &output)
	}
}

// Each NIC of a lab file has a socket of its name; QEMU's arguments have the guest's devices in the file's
// PCI tree.
func TestLabIsServed(t *testing.T) {
	testkit.LeavesNothing(t)
	dir := t.TempDir()
	s := serve(t, taken(t, labOfTwo, dir))
	var sockets []string
	for _, p := range s.rep.Ports {
		sockets = append(sockets, p.Name, p.Socket)
		testkit.Equal(t, "arguments of a NIC alone", len(p.QEMU), 0)
	}
	want := []string{}
	for _, name := range []string{"a.nic0", "a.nic1", "b.nic0", "b.nic1"} {
		want = append(want, name, filepath.Join(dir, name+".sock"))
	}
	if !slices.Equal(sockets, want) {
		t.Errorf("sockets %q", sockets)
	}
	testkit.Equal(t, "an address of the file", s.rep.Ports[1].Addr4, "192.0.2.2/24")
	testkit.Equal(t, "model", s.rep.NIC, "gve,virtio")
	if !strings.HasPrefix(s.rep.KernelArgs, noKASLR+" udmabuf.") || len(s.rep.Guests) != 2 {
		t.Fatalf("%+v", s.rep)
	}
	for i, has := range [][]string{
		{"-M q35 -m size=256M", "size=268435456,share=on", "pxb-pcie,id=pcie.s0", "bus=pcie-port.gpu1",
			"size=4194304,mem-path=" + s.rep.Guests[0].GPUs[0].Path + ",", "path=" + want[1] + ",",
			"path=" + want[3] + ",", "mac=02:76:6e:69:00:02"},
		{"-m size=518M", "memory-backend-memfd,id=ram,size=536870912,share=on", "node,nodeid=1,memdev=gpu0",
			"size=6291456,mem-path=" + s.rep.Guests[1].GPUs[0].Path + ",", `"path":"` + want[5], "path=" + want[7] + ","},
	} {
		line := strings.Join(s.rep.Guests[i].QEMU, " ")
		for _, part := range has {
			if !strings.Contains(line, part) {
				t.Errorf("guest %d: not %q in %s", i, part, line)
			}
		}
	}
	s.talk(s.guest(1), s.guest(3))
}

// A guest's first NIC has a name at the gateway, unless the file gives it another IPv4 address than the default.
func TestGatewayOfALab(t *testing.T) {
	testkit.LeavesNothing(t)
	const text = `
gateway: nat
guests:
  a: {nics: [{name: n}, {name: m}]}
  b: {nics: [{name: n, ipv4: 192.0.2.1/24}]}
  c: {nics: [{name: n, ipv6: fd00::1/64}]}
`
	o := taken(t, text, t.TempDir())
	host := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer host.Close()
	port := uint16(host.Addr().(*net.TCPAddr).Port)
	o.HostPorts = fmt.Sprint(port)
	var hosts []string
	for _, h := range testkit.Must(o.gatewayOptions())(t).Hosts {
		hosts = append(hosts, fmt.Sprint(h.Name, " ", h.MAC[5], " ", h.Addr4, " ", h.Addr6))
	}
	testkit.Equal(t, "hosts", strings.Join(hosts, ", "), "a 1 10.118.110.1 fd76:6e69::76:6eff:fe69:1, "+
		" 2 invalid IP invalid IP,  3 invalid IP invalid IP, c 4 10.118.110.3 invalid IP")
	s := serve(t, o)
	gw, _ := lab.GatewayAddrs()
	testkit.Equal(t, "gateway", s.rep.Gateway, gw.Addr().String())
	g := s.guest(0)
	defer g.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	c := testkit.Must(g.Dial(ctx, netip.AddrPort{}, netip.AddrPortFrom(gw.Addr(), port)))(t)
	conn := testkit.Must(host.Accept())(t)
	testkit.OK(t, errors.Join(c.Close(), conn.Close()))

	for want, change := range map[string]func(o *Options){
		"--forward: b.n has the address that the lab file says": func(o *Options) { o.Forwards = []string{"2222:guest1:22"} },
		`no guest "guest3"`: func(o *Options) { o.Forwards = []string{"2222:guest3:22"} },
		"--forward is the gateway's: not with --gateway off": func(o *Options) {
			o.Forwards, o.Gateway = []string{"2222:22"}, lab.GatewayOff
		},
	} {
		o := taken(t, text, "/")
		change(&o)
		testkit.ErrorSays(t, o.Check(), want)
	}
}

func TestLabsThatAreNotServed(t *testing.T) {
	l := testkit.Must(labfile.Parse("f", []byte(labOfTwo)))(t)
	for want, o := range map[string]struct {
		Options
		path string
	}{
		"--socket-path once with %s":  {Options{}, "/s%d"},
		"--lab and --fd":              {Options{FDs: []int{3}}, "/%s"},
		"--lab and --socket-group":    {Options{Group: "0"}, "/%s"},
		"--client and --nic gve":      {Options{Client: true}, "/%s"},
		"--poll and --nic gve":        {Options{Poll: 1}, "/%s"},
		"a socket's name has 107 at ": {Options{}, "/" + strings.Repeat("s", 110) + "%s"},
	} {
		err := o.Take(l, []string{o.path})
		if err == nil {
			err = o.Check()
		}
		testkit.ErrorSays(t, err, want)
	}
	o := taken(t, labOfTwo, "/")
	testkit.Equal(t, "memory at most", o.MemoryMax(1<<30), maxProgram+4*maxPort+2<<30+12<<20+maxGateway)
}
