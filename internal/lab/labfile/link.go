package labfile

import (
	"fmt"
	"reflect"

	"github.com/goccy/go-yaml"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/wire"
)

// Link is a NIC's link to the switch.
type Link struct {
	nic  string            // as a.nic0
	text map[string]string // values of impairments by their keys
}

// linkType is a struct type with the keys of a link: "of", and one for each of lab.Impairments.
var linkType = func() reflect.Type {
	fields := []reflect.StructField{{Name: "OF", Type: reflect.TypeFor[string](), Tag: `yaml:"of"`}}
	for i, f := range lab.Impairments() {
		fields = append(fields, reflect.StructField{Name: fmt.Sprint("F", i), Type: typed(&f, new(wire.Impairment)).Type(),
			Tag: reflect.StructTag(`yaml:"` + f.Key + `,omitempty"`)})
	}
	return reflect.StructOf(fields)
}()

// typed returns the value of f in im, with the type that it has in a file: a boolean, a list, or else a Quantity.
func typed(f *lab.Fault, im *wire.Impairment) reflect.Value {
	if v := reflect.ValueOf(f.Value(im)).Elem(); v.Kind() == reflect.Bool || v.Kind() == reflect.Slice {
		return v
	}
	return reflect.ValueOf(Quantity(f.Text(im)))
}

// UnmarshalYAML parses a link.
func (l *Link) UnmarshalYAML(unmarshal func(any) error) error {
	v := reflect.New(linkType).Elem()
	if err := unmarshal(v.Addr().Interface()); err != nil {
		return err
	}
	l.nic, l.text = v.Field(0).String(), make(map[string]string)
	for i, f := range lab.Impairments() {
		switch x := v.Field(i + 1).Addr().Interface().(type) {
		case *Quantity:
			l.text[f.Key] = string(*x)
		case lab.Value:
			l.text[f.Key] = x.String()
		}
	}
	return nil
}

// linkOf returns the YAML of a NIC's link; nil: there is no impairment.
func linkOf(n *lab.NIC) (m yaml.MapSlice) {
	for _, f := range lab.Impairments() {
		if f.Text(&n.Link.Up) != "" {
			m = append(m, yaml.MapItem{Key: f.Key, Value: typed(&f, &n.Link.Up).Interface()})
		}
	}
	if m != nil {
		m = append(yaml.MapSlice{{Key: "of", Value: n.Name}}, m...)
	}
	return m
}
