package labfile

import (
	"reflect"
	"slices"
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

// written returns a NIC's options after they were written and read again.
func written(t *testing.T, o lab.NICOptions) lab.NICOptions {
	l := testkit.Must(Parse("one", []byte("guests: {a: {nics: [{name: nic0}]}}")))(t)
	l.Guests[0].NICs[0].NICOptions = o
	b := testkit.Must(l.YAML())(t)
	return testkit.Must(Parse("again", b))(t).Guests[0].NICs[0].NICOptions
}

func differ(a, b lab.NICOptions) (fields []string) {
	for f, v := range reflect.ValueOf(a).Fields() {
		if v.Interface() != reflect.ValueOf(b).FieldByName(f.Name).Interface() {
			fields = append(fields, f.Name)
		}
	}
	return fields
}

func TestFileKeepsNICOptions(t *testing.T) {
	all := lab.NICOptions{MTU: 1400, MaxMTU: 9000, RSCUsecs: 20, XDP: true}
	testkit.Equal(t, "lost options", len(differ(all, written(t, all))), 0)
	for f, v := range reflect.ValueOf(&all).Elem().Fields() {
		if v.IsZero() {
			t.Errorf("%s is not set, so that nobody sees whether it is lost", f.Name)
		}
		less := all // negative control: as if the file lost this field
		reflect.ValueOf(&less).Elem().FieldByName(f.Name).SetZero()
		if got := differ(all, written(t, less)); !slices.Equal(got, []string{f.Name}) {
			t.Errorf("without %s these are lost: %v", f.Name, got)
		}
	}
}
