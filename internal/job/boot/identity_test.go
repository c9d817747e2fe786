package boot

import (
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

// --allow-mac applies to every NIC. No port of another guest may have the addresses of a guest's kernel and of its
// devmem programs.
func TestGuestsHaveTheirAddresses(t *testing.T) {
	for _, model := range []string{lab.Virtio, lab.GVE} {
		o := Options{NIC: model, Guests: 2, GPUMemory: 2 << 20,
			NICOptions: lab.NICOptions{MTU: 1500}, GatewayFlags: lab.GatewayFlags{NoGateway: true},
			AllowMAC: lab.AllowedMACs{Any: true}}
		w := testkit.Must(lab.Open(o.describe(), lab.Options{Services: []lab.Service{o.reserve}}))(t)
		d := o.describe()
		for _, g := range d.Guests {
			for _, n := range g.NICs {
				if id := n.Link.Identity; id.Learn || !id.Any {
					t.Errorf("%s: %+v", model, id)
				}
			}
		}
		for i, p := range o.places(w) {
			v4, v6 := o.devmemAddrs(0, i)
			for _, c := range []struct {
				port  *lab.Port
				known bool
			}{{p.devmem[0], true}, {o.places(w)[1-i].devmem[0], false}, {o.places(w)[1-i].kernel, false}} {
				testkit.Equal(t, "a devmem address", w.Switch().MayLease(c.port.MAC, v4.Addr()), c.known)
				testkit.Equal(t, "a devmem address", w.Switch().MayLease(c.port.MAC, v6.Addr()), c.known)
			}
			testkit.Equal(t, "its own", w.Switch().MayLease(p.kernel.MAC, p.kernel.Addr4.Addr()), true)
			testkit.Equal(t, "the other's", w.Switch().MayLease(p.kernel.MAC, o.places(w)[1-i].kernel.Addr4.Addr()), false)
		}
		testkit.OK(t, w.Close())
	}
}
