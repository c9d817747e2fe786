package lab

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

// reaches reads each field of NICOptions back from a port.
var reaches = map[string]func(*Port) any{
	"MTU":      func(p *Port) any { return p.MTU },
	"MaxMTU":   func(p *Port) any { return int(p.config(nil).MTU) },
	"RSCUsecs": func(p *Port) any { return int(p.config(nil).Hold / time.Microsecond) },
	"XDP":      func(p *Port) any { return p.XDP },
}

// lost lists the fields of options for which a port has another value.
func lost(t *testing.T, o NICOptions, p *Port) (fields []string) {
	for i, v := range reflect.ValueOf(o).Fields() {
		read := reaches[i.Name]
		switch {
		case read == nil:
			t.Errorf("no test reads %s back from a port: add it to reaches", i.Name)
		case v.IsZero():
			t.Errorf("%s is not set, so that nobody sees whether it is lost", i.Name)
		case read(p) != v.Interface():
			fields = append(fields, i.Name)
		}
	}
	return fields
}

func TestNICOptionsReachThePort(t *testing.T) {
	all := NICOptions{MTU: 1400, MaxMTU: 9000, RSCUsecs: 20, XDP: true}
	open := func(o NICOptions) *Port {
		l := testkit.Must(Open(Uniform(1, NIC{Model: Virtio, NICOptions: o}, 0), Options{}))(t)
		t.Cleanup(func() { testkit.OK(t, l.Close()) })
		return l.Port(0)
	}
	testkit.Equal(t, "lost options", len(lost(t, all, open(all))), 0)
	for i := range reflect.TypeFor[NICOptions]().NumField() { // negative controls: as if this option were lost
		less := all
		f := reflect.ValueOf(&less).Elem().Field(i)
		f.SetZero()
		if name := reflect.TypeFor[NICOptions]().Field(i).Name; !slices.Equal(lost(t, all, open(less)), []string{name}) {
			t.Errorf("without %s these are lost: %v", name, lost(t, all, open(less)))
		}
	}
}
