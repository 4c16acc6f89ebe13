package repotest

import (
	"errors"
	"go/ast"
	"go/doc/comment"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// Every page of docs is in the index, and every link of a document leads somewhere: to a file,
// to a heading of it, or to a name that a package has.
func TestLinks(t *testing.T) {
	pages := make(map[string]page)
	for _, name := range files(t) {
		if path.Ext(name) != ".md" || strings.Contains(name, "testdata/") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(repository, name))
		if errors.Is(err, fs.ErrNotExist) { // deleted, and not yet committed
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		pages[name] = read(string(text))
	}
	names := godoc(t)
	root := os.DirFS(repository)
	listed := make(map[string]bool)
	for name, p := range pages {
		for _, l := range p.links {
			if reference, ok := strings.CutPrefix(l.target, "https://pkg.go.dev/"+module); ok {
				pkg, anchor, _ := strings.Cut(strings.TrimPrefix(reference, "/"), "#")
				if !slices.Contains(names[pkg], anchor) {
					t.Errorf("%s:%d: %s: no such name", name, l.line, l.target)
				}
				continue
			}
			if strings.Contains(l.target, ":") {
				continue
			}
			file, anchor, _ := strings.Cut(l.target, "#")
			to := name
			if file != "" {
				to = path.Join(path.Dir(name), file)
			}
			if _, err := fs.Stat(root, to); err != nil {
				t.Errorf("%s:%d: %s: %v", name, l.line, l.target, err)
				continue
			}
			if anchor != "" && !slices.Contains(pages[to].anchors, anchor) {
				t.Errorf("%s:%d: %s: no such heading", name, l.line, l.target)
			}
			if name == "docs/README.md" || name == path.Join(path.Dir(to), "README.md") {
				listed[to] = true
			}
		}
	}
	for name := range pages {
		if strings.HasPrefix(name, "docs/") && path.Base(name) != "README.md" && !listed[name] {
			t.Errorf("%s is not in the README.md of docs or its folder", name)
		}
	}
}

// A page is what of a document concerns links.
type page struct {
	anchors []string // of its headings
	links   []link
}

type link struct {
	line   int
	target string
}

var (
	code    = regexp.MustCompile("``[^`]+``|`[^`]*`")
	target  = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	heading = regexp.MustCompile(`^#{1,6} +(.*)$`)
)

func read(document string) page {
	var p page
	var open string // the fence of the block that we are in
	for i, text := range strings.Split(document, "\n") {
		switch f := fence.FindStringSubmatch(text); {
		case open != "":
			if closes(text, open) {
				open = ""
			}
			continue
		case f != nil:
			open = f[1]
			continue
		case strings.HasPrefix(text, "    ") && !strings.HasPrefix(strings.TrimSpace(text), "["):
			continue // code, or the rest of an item, in which a link begins its line
		}
		if h := heading.FindStringSubmatch(text); h != nil {
			p.anchors = append(p.anchors, anchor(h[1], p.anchors))
		}
		for _, m := range target.FindAllStringSubmatch(code.ReplaceAllString(text, "x"), -1) {
			p.links = append(p.links, link{i + 1, m[1]})
		}
	}
	return p
}

// anchor returns that of a heading, as GitHub makes it.
func anchor(heading string, before []string) string {
	heading = regexp.MustCompile(`\]\([^)]*\)`).ReplaceAllString(heading, "")
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			b.WriteRune(r)
		}
	}
	name := b.String()
	for n := 1; slices.Contains(before, name); n++ {
		name = b.String() + "-" + strconv.Itoa(n)
	}
	return name
}

// godoc returns the anchors of each package's page: of its names, its methods, its headings.
func godoc(t *testing.T) map[string][]string {
	t.Helper()
	names := map[string][]string{"": {""}}
	for _, s := range sources(t, true) {
		if s.test {
			continue
		}
		all := slices.Concat(names[s.dir()], []string{""})
		if s.file.Doc != nil {
			for _, block := range new(comment.Parser).Parse(s.file.Doc.Text()).Content {
				if h, ok := block.(*comment.Heading); ok {
					all = append(all, h.DefaultID())
				}
			}
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				name := d.Name.Name
				if d.Recv != nil {
					receiver := d.Recv.List[0].Type
					if p, ok := receiver.(*ast.StarExpr); ok {
						receiver = p.X
					}
					if i, ok := receiver.(*ast.Ident); ok {
						name = i.Name + "." + name
					}
				}
				all = append(all, name)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						all = append(all, spec.Name.Name)
						if x, ok := spec.Type.(*ast.StructType); ok {
							for _, f := range x.Fields.List {
								for _, n := range f.Names {
									all = append(all, spec.Name.Name+"."+n.Name)
								}
							}
						}
					case *ast.ValueSpec:
						for _, n := range spec.Names {
							all = append(all, n.Name)
						}
					}
				}
			}
		}
		names[s.dir()] = all
	}
	return names
}

func TestRead(t *testing.T) {
	p := read("# A `b`: c\n\n[x](y.md#z) and `[no](link)`\n\n## Same\n\n## Same\n\n```\n# none\n[no](link)\n```\n    [item](w)\n    code [no](link)\n")
	if want := []string{"a-b-c", "same", "same-1"}; !slices.Equal(p.anchors, want) {
		t.Errorf("anchors %q, want %q", p.anchors, want)
	}
	if want := []link{{3, "y.md#z"}, {13, "w"}}; !slices.Equal(p.links, want) {
		t.Errorf("links %v, want %v", p.links, want)
	}
}
