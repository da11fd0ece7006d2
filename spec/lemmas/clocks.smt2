; Clocks (Lemma 4). The clock of an operation is the greatest number of a copy (of one direction) that has
; surely ended before it, and copy k has iff k is at most the clock: since copies of a direction end in
; the order of their numbers.
; Induction along `happens before`: each block is one way in which an operation follows others.
; Used: races._RaceEncoder.

(push 1) ; an operation after two others, such as a wait: the later clock
(declare-const k Int) (declare-const clock_p Int) (declare-const clock_q Int)
(declare-const ended_p Bool) (declare-const ended_q Bool) (declare-const ended Bool)
(assert (! (= ended_p (<= k clock_p)) :named hypothesis_p))
(assert (! (= ended_q (<= k clock_q)) :named hypothesis_q))
(assert (! (= ended (or ended_p ended_q)) :named follows_both))
(assert (not (= ended (<= k (later clock_p clock_q)))))
(check-sat)
(pop 1)

(push 1) ; after the end of the next copy of this direction: its number
(declare-const k Int) (declare-const last Int) (declare-const ended_before Bool) (declare-const ended Bool)
(assert (! (= ended_before (<= k last)) :named all_before_have_ended))
(assert (! (= ended (or ended_before (= k (copy.number last)))) :named this_one_too))
(assert (not (= ended (<= k (copy.number last)))))
(check-sat)
(pop 1)
