package headgated

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/old/keywatch"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/old/limits/redisdoc"
	"github.com/headgate/headgate/internal/old/limits/yamldoc"
	"github.com/headgate/headgate/internal/old/settle"
)

// What is read again while the server runs.
const (
	ofDocument = iota
	ofCertificates
	reloaded
)

var whats = [reloaded]string{"document", "certificates"}

// A configuration is what a document says, as of one moment. It does not change.
type configuration struct {
	*document

	version string
	view    limits.View
	watch   *keywatch.Watch
	charges map[*routeCharge]int // their indexes in watch
	uses    struct{ host, method, path bool }
}

// texts are what was read: the document, and that of the limits, which is nil if they are in the same.
type texts struct {
	document, limits []byte
	files            []settle.File
}

func (t *texts) equal(u *texts) bool {
	return u != nil && bytes.Equal(t.document, u.document) && bytes.Equal(t.limits, u.limits) && settle.Equal(t.files, u.files)
}

// version returns what tells these texts from others.
func (t *texts) version() string {
	sum := sha256.Sum256(t.document)
	if t.limits != nil {
		sum = sha256.Sum256(append(sum[:], t.limits...))
	}
	for _, f := range t.files {
		sum = sha256.Sum256(append(append(sum[:], f.Name...), f.Text...))
	}
	return hex.EncodeToString(sum[:6])
}

// A feed is the source of the book: it has what the server gives it, so that limits and routes change
// together.
type feed struct {
	text   atomic.Pointer[[]byte]
	shared *redisdoc.Source // nil: the limits are in the document
}

// Load implements [limits.Source].
func (f *feed) Load(context.Context) ([]byte, error) { return *f.text.Load(), nil }

// give gives the book what was read.
func (f *feed) give(t *texts) {
	if f.shared != nil {
		f.text.Store(&t.limits)
	} else {
		f.text.Store(&t.document)
	}
}

const (
	loadTimeout = 5 * time.Second
	never       = 10_000 * time.Hour
)

// begin reads everything for the first time.
func (s *Server) begin() error {
	certificates, err := s.config.TLS.load(nil)
	if err != nil {
		return err
	}
	s.certificates.Store(certificates)
	ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
	defer cancel()
	read, err := s.load(ctx)
	if err != nil {
		return fmt.Errorf("headgated: %w", err)
	}
	d, err := s.parse(read)
	if err != nil {
		return err
	}
	s.read = read
	s.feed.give(read)
	config := limits.Config{Decode: decodeLimits, Every: never, Accept: s.accept, Changed: s.changed} // it is asked by Reload only
	if s.feed.shared != nil {
		config.Decode = yamldoc.Decode
	}
	if s.book, err = limits.Open(ctx, s.store, false, &s.feed, config); err != nil {
		return err
	}
	s.enact(read, d)
	s.share(ctx, nil)
	return nil
}

// load reads the document, and the limits that are elsewhere.
func (s *Server) load(ctx context.Context) (*texts, error) {
	var t texts
	var err error
	if t.document, err = s.config.Document.Load(ctx); err == nil && s.feed.shared != nil {
		t.limits, err = s.feed.shared.Load(ctx)
	}
	if err == nil && s.config.EnvoyConfig != "" {
		var before []settle.File
		if s.read != nil {
			before = s.read.files
		}
		t.files, err = settle.Read(ctx, before, limits.MaxBytes, s.ruleFiles)
	}
	return &t, err
}

// ruleFiles returns the names of the files with domains, in order.
func (s *Server) ruleFiles() ([]string, error) {
	names, err := filesIn(s.config.EnvoyConfig, maxNested)
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("there is no file in %s", s.config.EnvoyConfig)
	}
	return names, err
}

// maxNested is how many directories may be in each other.
const maxNested = 8

// filesIn returns the names of the files in a directory and in those below it, but for hidden ones. Links are followed,
// as a ConfigMap has them: nested bounds those that lead back.
func filesIn(directory string, nested int) (names []string, err error) {
	if nested == 0 {
		return nil, fmt.Errorf("more than %d directories are in each other: %s", maxNested, directory)
	}
	entries, err := os.ReadDir(directory)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name := filepath.Join(directory, e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if info, err := os.Stat(name); err != nil || !info.IsDir() {
			names = append(names, name) // reading it says what is wrong with it
			continue
		}
		below, err := filesIn(name, nested-1)
		if err != nil {
			return nil, err
		}
		names = append(names, below...)
	}
	return names, nil
}

// parse returns the document of what was read.
func (s *Server) parse(read *texts) (*document, error) {
	d, err := parse(read.document, read.limits != nil, s.store, s.rls)
	if err != nil {
		return nil, err
	}
	if read.limits != nil {
		if d.limits, err = limits.Parse(read.limits, yamldoc.Decode); err != nil {
			return nil, errors.New("headgated: the limits in Redis: " + err.Error()) // whose places are not those of the document
		}
		if faults := d.missing(d.limits); len(faults) > 0 {
			return nil, faults
		}
	}
	if err := d.addFiles(read.files, d.limits, s.store, s.rls); err != nil {
		return nil, err
	}
	return d, nil
}

// accept takes each document that is valid, and tells what it costs.
func (s *Server) accept(d limits.Diff) error {
	for _, change := range d.Lost() {
		s.log.Warn("headgated: what was used of a limit does not count any more", slog.String("limit", change.Limit), slog.String("change", change.What))
	}
	return nil
}

// mostChanges of a document are told.
const mostChanges = 20

// changed tells what a document has changed.
func (s *Server) changed(e limits.Event) {
	for i, change := range e.Diff.Changes {
		if i == mostChanges {
			s.log.Info("headgated: and more changes of limits", slog.Int("changes", len(e.Diff.Changes)-i))
			break
		}
		s.log.Info("headgated: a limit changes", slog.String("limit", change.Limit), slog.String("change", change.What),
			slog.String("was", change.Was), slog.String("is", change.Is))
	}
}

// Reload reads the certificates and the document again, and returns why one of them does not apply.
// Then everything stays as it was. Otherwise the changes apply to requests from now on. Counts,
// remembered refusals and leases of limits that did not change stay.
func (s *Server) Reload(ctx context.Context) error { return s.reload(ctx, true) }

// reload is Reload of what has changed, or of all.
func (s *Server) reload(ctx context.Context, all bool) error {
	s.loading.Lock()
	defer s.loading.Unlock()
	certificates, errCertificates := s.config.TLS.load(s.certificates.Load())
	if errCertificates == nil {
		s.certificates.Store(certificates)
	}
	s.tell(ofCertificates, errCertificates)
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	read, err := s.load(ctx)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		s.read = nil // the caller gave up, which is no fault of what was read
		return errors.Join(errCertificates, ctx.Err())
	case err != nil:
		s.read = nil
	case !all && read.equal(s.read):
		err = s.faultOf(ofDocument)
	default:
		if s.read, err = read, s.apply(ctx, read); ctx.Err() != nil {
			s.read = nil // who knows how far it came
		}
	}
	s.tell(ofDocument, err)
	s.share(ctx, err)
	return errors.Join(errCertificates, err)
}

// share tells the other servers what became of the limits in Redis.
func (s *Server) share(ctx context.Context, err error) {
	if s.feed.shared == nil {
		return
	}
	state := s.book.State()
	if err != nil {
		state.Err = err
	}
	for _, t := range s.current.Load().routes {
		for _, c := range t.charges {
			state.Program.Limits = append(state.Program.Limits, c.limit)
		}
	}
	for _, r := range s.current.Load().named {
		state.Program.Limits = append(state.Program.Limits, r.limit)
	}
	s.feed.shared.Loaded(ctx, state)
}

// apply makes a document the one in force.
func (s *Server) apply(ctx context.Context, read *texts) error {
	d, err := s.parse(read)
	if err != nil {
		return err
	}
	s.feed.give(read)
	if err := s.book.Reload(ctx); err != nil {
		return err
	}
	s.enact(read, d)
	return nil
}

// enact makes a configuration of a document whose limits the book has.
func (s *Server) enact(read *texts, d *document) {
	c := &configuration{document: d, version: read.version(), view: s.book.View(), charges: make(map[*routeCharge]int)}
	var names []string
	for _, t := range d.routes {
		c.uses.host = c.uses.host || len(t.hosts) > 0
		c.uses.method = c.uses.method || len(t.methods) > 0
		c.uses.path = c.uses.path || t.path != nil
		for _, charge := range t.charges {
			c.charges[charge] = len(names)
			c.uses.method = c.uses.method || slices.Contains(charge.parts, wordMethod)
			names = append(names, strings.TrimSuffix(charge.place.Path, "."+wordLimit)+": "+charge.limit)
		}
	}
	c.watch = keywatch.New("headgated", s.log, names, false)
	before := s.current.Swap(c)
	if before != nil && before.version == c.version {
		return
	}
	s.metrics.applied(c.version)
	s.log.Info("headgated: the document applies", slog.String("version", c.version), slog.Int("routes", len(d.routes)))
	s.warnOf(s.book.State().Notes)
	if before != nil {
		s.warnOfLosses(before.document, d)
	}
}

// warnOf tells the notes of the limits, which have no keys.
func (s *Server) warnOf(notes limits.Faults) {
	for i, note := range notes {
		if i == mostChanges {
			s.log.Warn("headgated: and more notes about the limits", slog.Int("notes", len(notes)-i))
			break
		}
		s.log.Warn("headgated: a note about the limits", slog.String("note", note.Error()))
	}
}

// warnOfLosses tells which descriptors begin anew with another document.
func (s *Server) warnOfLosses(before, now *document) {
	was := make(map[string]string)
	for r := range before.rules() {
		was[r.id] = r.usage()
	}
	lost := 0
	for r := range now.rules() {
		if was, is := was[r.id], r.usage(); was == "" || is == "" || was == is {
			continue
		}
		if lost++; lost <= mostChanges {
			s.log.Warn("headgated: what was used of a limit does not count any more", slog.String("descriptor", label(r.path)))
		}
	}
	if lost > mostChanges {
		s.log.Warn("headgated: and what was used of more limits", slog.Int("limits", lost-mostChanges))
	}
}

// tell counts what became of something that was read, and logs it if it is news.
func (s *Server) tell(what int, err error) {
	s.mu.Lock()
	before := s.faults[what]
	s.faults[what] = err
	s.mu.Unlock()
	news := err != nil && (before == nil || before.Error() != err.Error())
	s.metrics.reloaded(whats[what], err != nil, news)
	switch {
	case news:
		s.log.Error("headgated: what was read does not apply: the one before stays in force", slog.String("what", whats[what]), slog.String("error", err.Error()))
	case err == nil && before != nil:
		s.log.Info("headgated: what was read applies again", slog.String("what", whats[what]))
	}
}

func (s *Server) faultOf(what int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults[what]
}
