package headgated

import (
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/old/nethttp"
)

// The fields in which a proxy tells of the request that it asks about.
const (
	forwardedMethod = "X-Forwarded-Method"
	forwardedHost   = "X-Forwarded-Host"
	forwardedURI    = "X-Forwarded-Uri"
	forwardedFor    = "X-Forwarded-For"
)

// statusField has the status of a refusal that deny=403 hides.
const statusField = "X-Headgate-Status"

// auth answers a proxy that asks whether to let a request through: with 200, or with the refusal that the
// client gets. With deny=403 each refusal is a 403, because nginx lets a subrequest refuse with no other.
func (s *Server) auth(w http.ResponseWriter, r *http.Request) {
	deny := r.URL.Query().Get("deny")
	if deny != "" && deny != "403" {
		fail(w, http.StatusBadRequest, "deny is 403, or is not there")
		return
	}
	refuse := func(status int, body []byte) {
		if deny != "" {
			w.Header().Set(statusField, strconv.Itoa(status))
			status = http.StatusForbidden
		}
		send(w, status, nethttp.ProblemType, body)
	}
	c := s.current.Load()
	s.lookForForgery(c, r)
	of, err := c.original(r)
	if err != nil {
		refuse(http.StatusBadRequest, failure(http.StatusBadRequest, err.Error()))
		return
	}
	met := meet(c.routes, of)
	if len(met) == 0 {
		s.metrics.unmatched.Inc()
	}
	w.Header().Set("Cache-Control", "no-store")
	asks, at, err := asksOf(met)
	switch {
	case at != nil:
		c.watch.Unkeyed(c.charges[at], http.StatusBadRequest, err)
		refuse(http.StatusBadRequest, failure(http.StatusBadRequest, "the request does not say who makes it"))
		return
	case err != nil:
		refuse(http.StatusBadRequest, failure(http.StatusBadRequest, err.Error()))
		return
	case len(asks) == 0:
		w.WriteHeader(http.StatusOK)
		return
	}
	v := c.verdict(r, asks)
	v.SetFields(w.Header())
	if v.Status() == 0 {
		w.WriteHeader(http.StatusOK)
		return
	}
	refuse(v.Status(), v.Problem())
}

// lookForForgery logs, once, that a peer is not believed.
func (s *Server) lookForForgery(c *configuration, r *http.Request) {
	if c.trusted(r) {
		return
	}
	for _, name := range [...]string{forwardedFor, forwardedURI, forwardedHost, forwardedMethod} {
		if r.Header.Get(name) == "" {
			continue
		}
		s.metrics.untrusted.Inc()
		if s.forged.CompareAndSwap(false, true) {
			s.log.Warn("headgated: a peer that is not trusted sends X-Forwarded fields, which are not read: if it is your proxy, name its network under trusted",
				slog.String("field", name))
		}
		return
	}
}

// original returns the request that a proxy asks about, as far as it tells, if it is trusted. The request
// of another peer is about itself.
func (c *configuration) original(r *http.Request) (*http.Request, error) {
	of := r.WithContext(r.Context()) // a copy
	if !c.trusted(r) {
		return of, nil
	}
	method, errMethod := forwarded(r, forwardedMethod, c.uses.method)
	host, errHost := forwarded(r, forwardedHost, c.uses.host)
	uri, errURI := forwarded(r, forwardedURI, c.uses.path)
	if err := errors.Join(errMethod, errHost, errURI); err != nil {
		return nil, err
	}
	if method != "" {
		of.Method = method
	}
	if host != "" {
		of.Host = host
	}
	if uri != "" {
		u, err := url.ParseRequestURI(uri)
		path, _, _ := strings.Cut(uri, "?")
		if err != nil || strings.Contains(uri, "#") || strings.Contains(path, `\`) { // no request has these; some servers end the path there
			return nil, errors.New("the URI in " + forwardedURI + " is not valid")
		}
		of.URL, of.RequestURI = u, uri
	}
	return of, nil
}

// forwarded returns a field of a trusted proxy. It must be there if routes depend on it: without it, none
// would match, and nothing be limited.
func forwarded(r *http.Request, name string, needed bool) (string, error) {
	lines := r.Header.Values(name)
	absent := len(lines) == 0 || len(lines) == 1 && lines[0] == ""
	switch {
	case absent && needed:
		return "", errors.New("the proxy does not send " + name + ", by which routes are chosen or requests are charged")
	case absent:
		return "", nil
	case len(lines) > 1 || name != forwardedURI && strings.Contains(lines[0], ","):
		return "", errors.New("there is more than one " + name + ": the proxy must set it, not add to it")
	}
	return lines[0], nil
}

// asksOf returns what a request is charged by the routes that it meets. What two readings of its path have in common
// is charged once. After an error, at is the charge that has no key, or nil.
func asksOf(met []meeting) (asks []ask, at *routeCharge, err error) {
	for _, m := range met {
		own, at, err := m.asks(m.request)
		if err != nil {
			return nil, at, err
		}
		for _, a := range own {
			if i := a.in(asks); i >= 0 {
				asks[i].units = max(asks[i].units, a.units)
			} else {
				asks = append(asks, a)
			}
		}
	}
	if len(asks) > maxCharges {
		return nil, nil, errors.New("the path can be read in several ways, which together have too many charges")
	}
	for i, a := range asks {
		if slices.ContainsFunc(asks[:i], func(b ask) bool { return a.limit == b.limit && a.key == b.key }) {
			return nil, nil, errors.New("the request is charged for one key of a limit under two plans")
		}
	}
	return asks, nil, nil
}

// asks returns what a request of the route is charged. Charges of one limit, plan and key are one. After an error, at is the
// charge that has no key.
func (t *route) asks(r *http.Request) (asks []ask, at *routeCharge, err error) {
	asks = make([]ask, 0, len(t.charges))
	for _, c := range t.charges {
		a := ask{limit: c.limit, units: c.units}
		if c.plan != "" {
			a.plan = r.Header.Get(c.plan)
		}
		if a.key, err = c.key(r); err != nil {
			return nil, c, err
		}
		if i := a.in(asks); i >= 0 {
			asks[i].units = min(asks[i].units+a.units, maxUnits)
		} else {
			asks = append(asks, a)
		}
	}
	return asks, nil, nil
}

// verdict decides about the charges of a route.
func (c *configuration) verdict(r *http.Request, asks []ask) nethttp.Verdict {
	charges, err := c.chargesOf(asks, false)
	var d backend.Decision
	if err == nil {
		err = backend.Decide(r.Context(), toCharge, charges, &d)
	}
	if err != nil && r.Context().Err() == nil {
		c.watch.Undecided(-1, http.StatusServiceUnavailable, err)
	}
	return nethttp.VerdictOf(&d, err)
}
