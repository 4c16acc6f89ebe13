package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// A finding is something that is expected, and what was measured.
type finding struct {
	expected, measured string
	ok                 bool
}

func (f *fleet) find(ok bool, expected, measured string, args ...any) {
	f.findings = append(f.findings, finding{expected, fmt.Sprintf(measured, args...), ok})
}

// play plays the story. It returns an error if it cannot finish, such as when a server ends
// by itself.
func (f *fleet) play(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case err := <-f.crashed:
			f.board.say("The story ends: %v.", err)
			cancel(err)
		case <-ctx.Done():
		}
	}()

	err := f.chapters(ctx)
	if cause := context.Cause(ctx); cause != nil {
		err = cause // more than that a context was canceled
	}
	crashed := 0
	for _, s := range f.servers {
		if *s.state.Load() == "crashed" {
			crashed++
		}
	}
	f.find(crashed == 0, "no server ends by itself", "%d did", crashed)
	return err
}

func (f *fleet) chapters(ctx context.Context) error {
	greedy, satisfied := context.WithCancel(ctx)
	var users sync.WaitGroup
	defer users.Wait()
	defer satisfied()
	for _, u := range f.users {
		users.Go(func() { u.connectAgainAndAgain(greedy, f) })
	}
	for _, chapter := range []func(context.Context) error{f.fill, f.kill, f.empty} {
		if err := chapter(ctx); err != nil {
			return err
		}
	}
	satisfied()
	users.Wait()
	return f.stop(ctx)
}

// fill waits until every user has as many sockets as the limit allows.
func (f *fleet) fill(ctx context.Context) error {
	f.board.say("Each user opens sockets, on one server after the other.")
	if _, err := f.until(ctx, "every user to have its sockets", f.allFull); err != nil {
		return err
	}
	refused := f.refusals()
	if _, err := f.until(ctx, "users to be refused", func() bool { return f.refusals() >= refused+len(f.users) }); err != nil {
		return err
	}
	f.board.say("Every user has %d. Further attempts are refused with 429.", f.limit)
	if err := f.wait(ctx, f.pause); err != nil {
		return err
	}
	f.find(f.mostOver() == 0, fmt.Sprintf("no user has more than %d sockets", f.limit), "%d users, at most %d each", len(f.users), f.limit+f.mostOver())
	return nil
}

// kill kills a server, and waits until the users have its slots on other servers.
func (f *fleet) kill(ctx context.Context) error {
	victim := f.servers[0]
	n := victim.sockets()
	f.board.say("Server %s is killed, with %d sockets. They count until the server is found dead.", victim.name, n)
	if err := victim.kill(); err != nil {
		return err
	}
	if _, err := f.until(ctx, "the sockets to be gone", func() bool { return victim.sockets() == 0 }); err != nil {
		return err
	}
	first, err := f.until(ctx, "the first slot to be free", func() bool { return f.missing() < n })
	if err != nil {
		return err
	}
	all, err := f.until(ctx, "all slots to be free", f.allFull)
	if err != nil {
		return err
	}
	f.board.say("After %s its slots were free, and the users have them on other servers.", round(first+all))
	if err := f.wait(ctx, f.pause); err != nil {
		return err
	}
	within := f.freedWithin()
	f.find(first+all <= within, fmt.Sprintf("the slots of a killed server are free within %v (a TTL, a beat and %v for this machine)", round(within), f.slack),
		"%d slots, the first after %s and all after %s", n, round(first), round(first+all))
	f.find(f.mostOver() == 0, "no user has more than its limit meanwhile", "at most %d", f.limit+f.mostOver())
	return nil
}

// empty empties Redis and waits until the counts are right again.
func (f *fleet) empty(ctx context.Context) error {
	open := f.open()
	f.board.say("Redis is emptied.")
	if err := f.forget(ctx); err != nil {
		return fmt.Errorf("emptying Redis: %w", err)
	}
	took, err := f.until(ctx, "the counts to be right again", func() bool { return f.countsAreRight(ctx) })
	if err != nil {
		return err
	}
	f.board.say("After %s every count was right again. No user had to reconnect.", round(took))
	f.explainOver()
	if err := f.wait(ctx, f.pause); err != nil {
		return err
	}
	within := f.restoredWithin()
	f.find(took <= within, fmt.Sprintf("an emptied Redis has all counts again within %v (two beats and %v for this machine)", round(within), f.slack),
		"after %s", round(took))
	f.find(f.open() >= open, "no user loses a socket", "%d open before, %d after", open, f.open())
	over := f.mostOver()
	f.find(over <= f.limit, fmt.Sprintf("a user gets at most %d more meanwhile", f.limit), "at most %d more", over)
	return nil
}

// explainOver says why some users hold more than the limit, if any do.
func (f *fleet) explainOver() {
	var names []string
	f.each(func(u *user) {
		if u.total > f.limit {
			names = append(names, fmt.Sprintf("%s %d of %d", u.name, u.total, f.limit))
		}
	})
	if len(names) > 0 {
		f.board.say("Above the limit: %s. These were admitted before Redis had the counts again, and stay open.", strings.Join(names, ", "))
	}
}

// stop shuts the other servers down.
func (f *fleet) stop(ctx context.Context) error {
	f.board.say("The other servers shut down.")
	for _, s := range f.servers[1:] {
		if err := s.stop(); err != nil {
			return fmt.Errorf("server %s: %w", s.name, err)
		}
	}
	held, err := f.counted(ctx)
	if err != nil {
		return err
	}
	f.find(held == 0, "a server that shuts down frees its slots at once", "%d held", held)
	return nil
}

// freedWithin returns how long after the death of a server its slots are free at the latest.
// A server beats three times in a TTL.
func (f *fleet) freedWithin() time.Duration { return f.ttl + f.ttl/3 + f.slack }

// restoredWithin returns how long after a loss all counts are in Redis again at the latest.
func (f *fleet) restoredWithin() time.Duration { return 2*f.ttl/3 + f.slack }

// patience returns how long the story waits for something.
func (f *fleet) patience() time.Duration { return 10*f.ttl + 20*time.Second }

// until waits until seen returns true, and returns how long that took.
func (f *fleet) until(ctx context.Context, what string, seen func() bool) (time.Duration, error) {
	start := time.Now()
	for !seen() {
		if time.Since(start) > f.patience() {
			return 0, errors.New("waited in vain for " + what)
		}
		if err := f.wait(ctx, 5*time.Millisecond); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

func (f *fleet) wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

// summary prints the findings. It returns an error if one is not as expected.
func (f *fleet) summary(w io.Writer) error {
	fmt.Fprintln(w, "\nExpected and measured:")
	failed := 0
	for _, x := range f.findings {
		mark := "ok   "
		if !x.ok {
			mark = "WRONG"
			failed++
		}
		fmt.Fprintf(w, "  %s  %s: %s\n", mark, x.expected, x.measured)
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d findings are not as expected", failed, len(f.findings))
	}
	return nil
}
