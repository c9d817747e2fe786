package labfile

import (
	"errors"
	"net/netip"
	"slices"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/wire/uplink"
)

func (b *builder) uplinks() error {
	if n := len(b.file.Uplinks); n > lab.MaxUplinks {
		return b.wrong([]any{"uplinks"}, "%d uplinks: a lab has %d at most", n, lab.MaxUplinks)
	}
	for i, f := range b.file.Uplinks {
		where := path{"uplinks", i}
		err := lab.CheckName(f.Name)
		switch {
		case err != nil:
			return b.wrong(where.to("name"), "%q is no name of an uplink: %v", f.Name, err)
		case f.Name == "gateway":
			return b.wrong(where.to("name"), "%q is no name of an uplink: it is the gateway's", f.Name)
		case slices.ContainsFunc(b.out.Uplinks, func(u Uplinked) bool {
			return u.Name == f.Name && (u.Of == f.Of || u.Of == "" || f.Of == "")
		}):
			return b.wrong(where.to("name"), "there are two %s", f.Name)
		case f.Of != "" && !slices.ContainsFunc(b.out.Guests, func(g lab.Guest) bool { return g.Name == f.Of }):
			return b.wrong(where.to("of"), "%q is no guest: the uplink is of the host that runs it, as of: %s", f.Of,
				b.out.Guests[0].Name)
		}
		c := uplink.Config{Name: f.Name, Tap: f.Tap, Stream: f.Stream}
		if v := f.VXLAN; v != nil {
			c.VXLAN = &uplink.VXLAN{VNI: uint32(min(v.VNI, uplink.MaxVNI+1))}
			c.VXLAN.Local, _ = netip.ParseAddrPort(v.Local) // c.Check reports an invalid address
			c.VXLAN.Remote, _ = netip.ParseAddrPort(v.Remote)
			where = where.to("vxlan")
		}
		if f.Stream != nil {
			where = where.to("stream")
		}
		if err := c.Check(); err != nil {
			if bad := (*uplink.Error)(nil); errors.As(err, &bad) && bad.Key != "" {
				where = where.to(bad.Key)
			} else {
				where = path{"uplinks", i}
			}
			return b.wrong(where, "%v", err)
		}
		b.out.Uplinks = append(b.out.Uplinks, Uplinked{c, f.Of})
	}
	return nil
}

// Uplinked is an uplink and its host.
type Uplinked struct {
	uplink.Config
	Of string // the guest on whose host it is; "": every host
}

// UplinksOf returns the uplinks of the host that runs this guest, including the uplinks that every host has. For "", it
// returns only these.
func (l *Lab) UplinksOf(guest string) (list []uplink.Config) {
	for _, u := range l.Uplinks {
		if u.Of == "" || u.Of == guest {
			list = append(list, u.Config)
		}
	}
	return list
}

func uplinkOf(u Uplinked) Uplink {
	f := Uplink{Name: u.Name, Of: u.Of, Tap: u.Tap, Stream: u.Stream}
	if v := u.VXLAN; v != nil {
		f.VXLAN = &VXLAN{v.Local.String(), v.Remote.String(), uint64(v.VNI)}
	}
	return f
}
