; Last copy. A use of bytes comes after all copies that used them before if it comes after the last
; one of each direction that matters to it: the numbers of a direction rise.
; Used: races._RaceEncoder.use keeps one number per direction and storage; the guards X.read.ok, X.write.ok.

(push 1) ; numbers rise: a copy is not above the last one, whichever comes next
(declare-const k Int) (declare-const last Int) (declare-const count Int)
(assert (! (<= k last) :named hypothesis))
(assert (! (<= last count) :named counted))
(assert (not (and (<= k (copy.number count)) (<= (copy.number count) (copy.number count)))))
(check-sat)
(pop 1)

(push 1) ; a write or an end, on either side: it comes after copy k of either direction
(declare-const d2h Int) (declare-const h2d Int)
(declare-const out Int) (declare-const into Int) (declare-const k Int) (declare-const m Int)
(assert (! (<= k out) :named k_is_no_later))
(assert (! (<= m into) :named m_is_no_later))
(assert (! (device.write.ok d2h h2d out into) :named device_guard))
(assert (not (and (<= k d2h) (<= m h2d))))
(check-sat)
(pop 1)

(push 1) ; on the host of an update too
(declare-const d2h Int) (declare-const h2d Int) (declare-const cpu Int)
(declare-const out Int) (declare-const into Int) (declare-const used Int)
(declare-const k Int) (declare-const m Int) (declare-const n Int)
(assert (! (<= k out) :named k_is_no_later))
(assert (! (<= m into) :named m_is_no_later))
(assert (! (<= n used) :named n_is_no_later))
(assert (! (host.write.ok d2h h2d cpu out into used) :named host_guard))
(assert (not (and (<= k d2h) (<= m h2d) (<= n cpu))))
(check-sat)
(pop 1)

(push 1) ; a read comes after copy k that writes
(declare-const h2d Int) (declare-const into Int) (declare-const k Int)
(assert (! (<= k into) :named k_is_no_later))
(assert (! (device.read.ok h2d into) :named guard))
(assert (not (<= k h2d)))
(check-sat)
(pop 1)

(push 1)
(declare-const d2h Int) (declare-const out Int) (declare-const k Int)
(declare-const cpu Int) (declare-const updated Int) (declare-const n Int)
(assert (! (<= k out) :named k_is_no_later))
(assert (! (<= n updated) :named n_is_no_later))
(assert (! (host.read.ok d2h cpu out updated) :named guard))
(assert (not (and (<= k d2h) (<= n cpu))))
(check-sat)
(pop 1)

(push 1) ; bytes that no copy has used: number 0, and no clock is below it
(declare-const d2h Int) (declare-const h2d Int) (declare-const cpu Int)
(assert (! (<= 0 d2h) :named clock_out))
(assert (! (<= 0 h2d) :named clock_in))
(assert (! (<= 0 cpu) :named clock_of_updates))
(assert (not (and (device.write.ok d2h h2d 0 0) (host.write.ok d2h h2d cpu 0 0 0)
                  (device.read.ok h2d 0) (host.read.ok d2h cpu 0 0))))
(check-sat)
(pop 1)
