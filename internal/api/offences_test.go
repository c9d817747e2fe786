package api

import (
	"fmt"
	"go/token"
	"go/types"
	"path"
	"slices"
	"strings"
)

// offence is a use of a type of this module that is not API in the exported API of a package.
type offence struct {
	pos   token.Position
	owner string // the identifier that leads to the type, such as "dma.Space.Add"
	typ   string
}

func (o offence) String() string {
	return fmt.Sprintf("%s: %s exports %s, whose package is not API", o.pos, o.owner, o.typ)
}

// offences lists uses of types of module's packages that are not in c.packages: the uses that an importer of the
// packages in c.packages can reach, as types of constants, variables, parameters and results; by exported and embedded
// fields and exported methods, also of unexported types; by type arguments, constraints and aliases.
func (c *checkout) offences(module string) []offence {
	var all []offence
	for dir, p := range c.packages {
		w := walker{checkout: c, module: module, pkg: p, seen: map[types.Type]bool{}}
		for _, name := range p.Scope().Names() {
			if o := p.Scope().Lookup(name); o.Exported() {
				w.placeAt(path.Base(dir)+"."+name, o).object(o)
			}
		}
		all = append(all, w.found...)
	}
	slices.SortFunc(all, func(a, b offence) int { return strings.Compare(a.String(), b.String()) })
	return slices.CompactFunc(all, func(a, b offence) bool { return a == b })
}

type walker struct {
	checkout *checkout
	module   string
	pkg      *types.Package
	seen     map[types.Type]bool
	found    []offence
}

type place struct {
	*walker
	name string
	pos  token.Position
}

func (w *walker) placeAt(name string, o types.Object) place {
	return place{w, name, w.checkout.fset.Position(o.Pos())}
}

func (p place) object(o types.Object) {
	if t, ok := o.(*types.TypeName); ok {
		if named, ok := t.Type().(*types.Named); ok && named.Obj() == t {
			p.declared(named)
			return
		}
	}
	p.typ(o.Type())
}

func (p place) declared(t *types.Named) {
	t = t.Origin()
	if p.seen[t] {
		return
	}
	p.seen[t] = true
	for param := range t.TypeParams().TypeParams() {
		p.typ(param.Constraint())
	}
	p.typ(t.Underlying())
	for m := range t.Methods() {
		if m.Exported() {
			p.placeAt(p.name+"."+m.Name(), m).typ(m.Type())
		}
	}
}

func (p place) named(o *types.TypeName, args *types.TypeList) {
	for a := range args.Types() {
		p.typ(a)
	}
	if o.Pkg() == nil { // predeclared, such as error
		return
	}
	dir, ours := strings.CutPrefix(o.Pkg().Path(), p.module+"/")
	if ours && p.checkout.packages[dir] == nil || o.Pkg().Path() == p.module {
		p.found = append(p.found, offence{p.pos, p.name, o.Pkg().Path() + "." + o.Name()})
	}
}

func (p place) typ(t types.Type) {
	switch t := t.(type) {
	case *types.Basic, *types.TypeParam: // a constraint is walked at its declaration
	case *types.Alias:
		p.named(t.Obj(), t.TypeArgs())
		p.typ(t.Rhs())
	case *types.Named:
		p.named(t.Obj(), t.TypeArgs())
		if t.Obj().Pkg() == p.pkg && !t.Obj().Exported() {
			p.declared(t)
		}
	case *types.Map:
		p.typ(t.Key())
		p.typ(t.Elem())
	case interface{ Elem() types.Type }:
		p.typ(t.Elem())
	case *types.Tuple:
		for v := range t.Variables() {
			p.typ(v.Type())
		}
	case *types.Signature:
		for param := range t.TypeParams().TypeParams() {
			p.typ(param.Constraint())
		}
		p.typ(t.Params())
		p.typ(t.Results())
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() || f.Embedded() { // an embedded field's own fields and methods are promoted
				p.placeAt(p.name+"."+f.Name(), f).typ(f.Type())
			}
		}
	case *types.Interface:
		for m := range t.ExplicitMethods() {
			if m.Exported() {
				p.placeAt(p.name+"."+m.Name(), m).typ(m.Type())
			}
		}
		for e := range t.EmbeddedTypes() {
			p.typ(e)
		}
	case *types.Union:
		for term := range t.Terms() {
			p.typ(term.Type())
		}
	default:
		panic(fmt.Sprintf("%s: a type of kind %T", p.name, t))
	}
}
